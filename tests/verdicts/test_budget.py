"""A budget: read strictly, and for the one graph that it was measured on."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError
from tallystick.verdicts.profiles import Budget, budget_for

GRAPH = Digest("sha256:" + "1a" * 32)
OTHER = Digest("sha256:" + "2b" * 32)
STATED: dict[str, Any] = {
    "budget": "opening",
    "version": 1,
    "graph": GRAPH,
    "stacks": ["base", "JAX"],
    "machines": ["here"],
    "runs": 8,
    "safety": 2.0,
    "one_direction": 2.57,
    "any_direction": 1.76,
    "path": 0.58,
    "paths": {"outputs.0": 0.58},
}


def test_a_budget_reads_back_from_its_bytes() -> None:
    found = Budget.from_bytes(encode(STATED), "b.json")
    assert Budget.from_bytes(found.to_bytes(), "b.json") == found
    assert (found.graph, found.paths) == (GRAPH, {"outputs.0": 0.58})


def test_a_budget_holds_for_its_own_graph_alone() -> None:
    found = Budget.from_json(STATED, "budget")
    assert budget_for([found], GRAPH) == found
    assert budget_for([found], OTHER) is None
    assert budget_for([], GRAPH) is None


@pytest.mark.parametrize(
    "change",
    [
        *({"budget": "other"}, {"version": 2}, {"graph": "sha256:12"}, {"runs": 0}, {"safety": 0.5}, {"path": -1.0}),
        *({"one_direction": "inf"}, {"any_direction": None}, {"paths": {"": 1.0}}, {"paths": {"y": -1.0}}),
        *({"unknown": 1}, {"stacks": [""]}),
    ],
    ids=str,
)
def test_another_document_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match=r"b\.json: "):
        Budget.from_bytes(encode(STATED | change), "b.json")


@pytest.mark.parametrize("name", ["graph", "runs", "safety", "one_direction", "any_direction", "path"])
def test_nothing_that_decides_is_missing(name: str) -> None:
    with pytest.raises(MalformedError, match=name):
        Budget.from_bytes(encode({key: value for key, value in STATED.items() if key != name}), "b.json")

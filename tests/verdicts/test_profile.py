"""A profile of thresholds: read strictly, merged by the larger error, and looked up by node before operator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError
from tallystick.verdicts.bounds import Errors
from tallystick.verdicts.profiles import Calibrated, Profile

GRAPH = Digest("sha256:" + "1a" * 32)
OTHER = Digest("sha256:" + "2b" * 32)


def errors(share: float, bias: float = 0.01) -> Calibrated:
    shares = (share / 8, share / 4, share / 2, share)
    return Calibrated.of(Errors(shares, shares, shares, shares, bias, 4096))


def profile(graph: Digest = GRAPH, share: float = 0.1, **changes: Any) -> Profile:
    stated: dict[str, Any] = {
        "graphs": (graph,),
        "stacks": ("base", "JAX"),
        "machines": ("here",),
        "inputs": 10,
        "safety": 3.0,
        "nodes": {graph: {"4": errors(share), "5.1": errors(share / 2)}},
        "operators": {"aten.mm.default F32": errors(share)},
    }
    return Profile(**{**stated, **changes})


def test_a_profile_reads_back_from_its_bytes() -> None:
    assert Profile.from_bytes(profile().to_bytes(), "p.json") == profile()


def test_a_node_has_its_own_threshold_and_any_other_that_of_its_operator() -> None:
    found = profile(operators={"aten.mm.default F32": errors(0.4)})
    own = found.threshold(GRAPH, "5.1", "aten.mm.default", "F32")
    common = found.threshold(OTHER, "5.1", "aten.mm.default", "F32")
    assert own is not None
    assert common is not None
    assert own.allowed()[-1] == pytest.approx(0.15)
    assert common.allowed()[-1] == 1.0  # three times 0.4 is more than the bound
    assert found.threshold(OTHER, "5.1", "aten.mm.default", "F16") is None


def test_merged_profiles_hold_for_the_stacks_of_both() -> None:
    one, other = profile(share=0.1), profile(share=0.3, stacks=("GPU",), machines=("there",), safety=2.0)
    both = one.merged(other)
    assert both.stacks == ("GPU", "JAX", "base")
    assert both.machines == ("here", "there")
    assert (both.inputs, both.safety) == (20, 3.0)
    assert both.nodes[GRAPH]["4"].share[-1] == 0.3
    assert both == other.merged(one)


def test_profiles_of_two_graphs_keep_the_nodes_of_each() -> None:
    both = profile(GRAPH).merged(profile(OTHER, share=0.2))
    assert both.graphs == (GRAPH, OTHER)
    assert both.nodes[GRAPH]["4"].share[-1] == 0.1
    assert both.nodes[OTHER]["4"].share[-1] == 0.2
    assert both.operators["aten.mm.default F32"].share[-1] == 0.2


@pytest.mark.parametrize(
    "change",
    [
        {"safety": 0.5},
        {"safety": 1000.0},
        {"inputs": 0},
        {"version": 2},
        {"surprise": 1},
        {"operators": {"mm": {}}},
        {"nodes": {GRAPH: {"04": {}}}},
        {"graphs": ["sha256:short"]},
    ],
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(profile().to_bytes())
    Profile.from_bytes(encode(document), "p.json")
    with pytest.raises(MalformedError):
        Profile.from_bytes(encode(document | change), "p.json")


@pytest.mark.parametrize("share", [-0.1, float("inf"), float("nan")])
def test_errors_are_finite_and_not_negative(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        errors(share)

"""Clusters, events and statements of traces, against their vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest_from, leaf_hash, tree_root
from tallystick.core.errors import MalformedError
from tallystick.formats.cluster import Cluster
from tallystick.formats.store.traces import EVENT_BYTES_MAX, TraceStatement, read_event

VECTORS = Path(__file__).parents[3] / "vectors"
CLUSTERS = json.loads((VECTORS / "cluster" / "clusters.json").read_text())
EVENTS = json.loads((VECTORS / "trace" / "events.json").read_text())
TRACE = json.loads((VECTORS / "trace" / "trace.json").read_text())


def case(vector: dict[str, Any]) -> str:
    return str(vector["case"])


@pytest.mark.parametrize("vector", CLUSTERS, ids=case)
def test_a_cluster_has_one_form(vector: dict[str, Any]) -> None:
    data = vector["bytes"].encode()
    if "refused" in vector:
        with pytest.raises(MalformedError, match=r"cluster\.json"):
            Cluster.from_bytes(data, "cluster.json")
        return
    found = Cluster.from_bytes(data, "cluster.json")
    assert (found.to_bytes(), found.identity) == (data, vector["digest"])


@pytest.mark.parametrize("vector", EVENTS, ids=case)
def test_an_event_has_one_form(vector: dict[str, Any]) -> None:
    data = vector["bytes"].encode()
    if "refused" in vector:
        with pytest.raises(MalformedError, match="event 5"):
            read_event(data, "event 5")
        return
    event = read_event(data, "event 5")
    assert event.to_bytes() == data == encode(event.to_json())


@pytest.mark.parametrize(
    "data",
    [b"[" * 5000 + b"]" * 5000, b'{"device":' * 70, b"\xff", b"", b'{"name":"\\ud800"}', b" " * (EVENT_BYTES_MAX + 1)],
    ids=["deep", "deep and broken", "no text", "empty", "half a character", "too long"],
)
def test_what_is_no_json_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(MalformedError, match=r"^event 5: ") as refusal:
        read_event(data, "event 5")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_a_statement_names_the_root_of_its_events() -> None:
    data = TRACE["bytes"].encode()
    found = TraceStatement.from_bytes(data, "trace.json")
    lines = [line.encode() for line in TRACE["lines"]]
    assert (found.to_bytes(), found.identity) == (data, TRACE["digest"])
    assert found.events.root == digest_from(tree_root([leaf_hash(line) for line in lines]))
    assert found.events.size == len(lines)

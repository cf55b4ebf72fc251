"""A trace in the format that Perfetto opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tallystick.formats.store.traces import chrome_json
from tests.support.traces import ONE, TWO, kernel, reduction, trace_at, two_nodes

EVENTS = [
    kernel(1500, 2000, operator=3, memory=900),
    kernel(4000, 1000, stream=None, device="node9/gpu0", name='a "quote"\n'),
    reduction(ONE, 6000, 500),
    reduction(TWO, 6100, 500),
]


def exported(tmp_path: Path) -> dict[str, Any]:
    trace = trace_at(tmp_path / "trace", EVENTS)
    found: dict[str, Any] = json.loads("".join(chrome_json(trace.statement(), two_nodes(), trace.events())))
    return found


def phase(found: dict[str, Any], letter: str) -> list[dict[str, Any]]:
    return [entry for entry in found["traceEvents"] if entry["ph"] == letter]


def test_every_event_is_a_slice_in_microseconds(tmp_path: Path) -> None:
    slices = phase(exported(tmp_path), "X")
    assert [(each["name"], each["ts"], each["dur"]) for each in slices[:2]] == [("k", 1.5, 2), ('a "quote"\n', 4, 1)]
    assert slices[0]["args"] == {"operator": 3, "memory": 900}
    assert len(slices) == len(EVENTS)


def test_a_device_is_a_process_and_a_stream_a_thread(tmp_path: Path) -> None:
    found = exported(tmp_path)
    processes = {each["pid"]: each["args"]["name"] for each in phase(found, "M") if each["name"] == "process_name"}
    threads = {
        (each["pid"], each["tid"]): each["args"]["name"] for each in phase(found, "M") if each["name"] == "thread_name"
    }
    placed = [(processes[each["pid"]], threads[each["pid"], each["tid"]]) for each in phase(found, "X")]
    assert placed == [(ONE, "stream 7"), ("node9/gpu0", "no stream"), (ONE, "stream 20"), (TWO, "stream 20")]


def test_an_arrow_joins_the_members_of_a_collective(tmp_path: Path) -> None:
    found = exported(tmp_path)
    (start,), (end,) = phase(found, "s"), phase(found, "f")
    assert start["id"] == end["id"]
    assert start["pid"] != end["pid"]


def test_memory_is_a_counter_at_the_end_of_its_event(tmp_path: Path) -> None:
    (counter,) = phase(exported(tmp_path), "C")
    assert (counter["ts"], counter["args"]) == (3.5, {"bytes": 900})

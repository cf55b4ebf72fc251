"""A trace as Chrome trace JSON, which Perfetto opens: one process a device, one thread a stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tallystick.traces.cluster import Cluster
from tallystick.traces.event import TraceEvent
from tallystick.traces.statement import TraceStatement

SHOWN: Final = ("operator", "fused", "step", "moved", "members", "memory", "subject")
Entry = dict[str, Any]


def chrome_json(statement: TraceStatement, cluster: Cluster, events: Iterable[TraceEvent]) -> Iterator[str]:
    """The text of the file in pieces; events are read one at a time, and times become microseconds."""
    header = {"graph": statement.graph, "claim": statement.claim, "clock": statement.clock, "source": statement.source}
    yield f'{{"displayTimeUnit":"ns","otherData":{_text({k: v for k, v in header.items() if v is not None})},'
    yield '"traceEvents":['
    for number, entry in enumerate(_Tracks(cluster).entries(events)):
        yield ("\n" if number == 0 else ",\n") + _text(entry)
    yield "\n]}\n"


class _Tracks:
    """Numbers processes by device and threads by stream; names each when it is first met."""

    def __init__(self, cluster: Cluster) -> None:
        self.processes = {name: number for number, name in enumerate(cluster.by_name, 1)}
        self.known: set[tuple[str, int]] = set()
        self.flows: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
        self.joined: Counter[tuple[str, tuple[str, ...], int]] = Counter()

    def entries(self, events: Iterable[TraceEvent]) -> Iterator[Entry]:
        """All entries of the file, in the order of the events."""
        for event in events:
            place = self._place(event)
            yield from self._names(event, place)
            yield self._slice(event, place)
            if event.memory is not None:
                yield _counter(event, place["pid"])
            if event.members is not None:
                yield self._arrow(event, event.members, place)

    def _place(self, event: TraceEvent) -> Entry:
        process = self.processes.setdefault(event.device, len(self.processes) + 1)
        return {"pid": process, "tid": 0 if event.stream is None else event.stream + 1}

    def _names(self, event: TraceEvent, place: Entry) -> Iterator[Entry]:
        track = (event.device, place["tid"])
        if not any(device == event.device for device, _ in self.known):
            yield {"ph": "M", "name": "process_name", **place, "args": {"name": event.device}}
        if track not in self.known:
            name = "no stream" if event.stream is None else f"stream {event.stream}"
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
            self.known.add(track)

    def _slice(self, event: TraceEvent, place: Entry) -> Entry:
        shown = {name: value for name in SHOWN if (value := getattr(event, name)) is not None}
        times = {"ts": _microseconds(event.start), "dur": _microseconds(event.duration)}
        return {"ph": "X", "name": event.name, "cat": event.kind, **place, **times, "args": shown}

    def _arrow(self, event: TraceEvent, members: tuple[str, ...], place: Entry) -> Entry:
        """One end of the arrows between the members of the n-th collective of this name."""
        count = self.flows[event.name, event.device, members]
        self.flows[event.name, event.device, members] += 1
        joined = self.joined[event.name, members, count]
        self.joined[event.name, members, count] += 1
        phase = "s" if joined == 0 else "f" if joined == len(members) - 1 else "t"
        name = f"{event.name} {','.join(members)} {count}"
        times = {"ts": _microseconds(event.start)}
        return {"ph": phase, "bp": "e", "id": name, "name": event.name, "cat": "members", **place, **times}


def _counter(event: TraceEvent, process: int) -> Entry:
    return {
        "ph": "C",
        "name": "memory",
        "pid": process,
        "ts": _microseconds(event.end),
        "args": {"bytes": event.memory},
    }


def _microseconds(nanoseconds: int) -> float | int:
    return nanoseconds // 1000 if nanoseconds % 1000 == 0 else nanoseconds / 1000


def _text(value: Entry) -> str:
    return json.dumps(value, separators=(",", ":"))

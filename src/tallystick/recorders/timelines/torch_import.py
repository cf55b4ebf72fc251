"""A trace of torch.profiler as events: on a GPU its kernels, on a processor the operators themselves."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tallystick.errors import MalformedError
from tallystick.recorders.timelines.graph_names import GraphNames
from tallystick.recorders.timelines.made_event import made_event
from tallystick.recorders.timelines.matching import Matching, Nodes
from tallystick.recorders.timelines.sorted_rows import Row
from tallystick.recorders.timelines.torch_calls import NODE_MARK, FirstPass, ProfiledCall, ProfiledCalls
from tallystick.recorders.timelines.torch_rows import DEVICE, LAUNCH, MEMORY, OPERATOR, SPAN, DevicePlaces, TorchRows
from tallystick.traces.event import EventKind, TraceEvent

LAUNCHES_MAX: Final = 1 << 20
"""The launches whose kernel has not been seen yet that are remembered."""
CUDA: Final = 1
EVENT_MARK: Final = re.compile(
    r"tally:(challenge|checkpoint|response|sample|sync)(?: (sha256:[0-9a-f]{64}))?(?: (.+))?", re.DOTALL
)
"""What happened beside the work of devices, the digest that it is about, and a name for people."""
WAITING: Final = re.compile(r"cu\w*Synchronize")
"""The calls of CUDA that wait for a device, a stream or an event."""
BYTES: Final = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("BFloat16", "Half", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}
KINDS: Final[dict[str, EventKind]] = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "kernel"}


@dataclass
class TorchImport:
    """Turns the rows of all files into events. The graph's nodes are found in two passes: count, then number.

    `known` are the names of the devices of the cluster.
    """

    placement: DevicePlaces
    names: GraphNames
    first_step: int | None
    known: frozenset[str]
    launches: OrderedDict[tuple[int, Any], tuple[Nodes, int | None]] = field(default_factory=OrderedDict)
    memory: dict[str, int] = field(default_factory=dict)
    streams: dict[tuple[int, str], int] = field(default_factory=dict)

    def events(self, rows: TorchRows) -> Iterator[TraceEvent]:
        """The events, by no order of time; those of a processor only where the files hold no work of GPUs."""
        matching, noted = Matching(self.names), FirstPass()
        counted = ProfiledCalls(matching, self.first_step, noted)
        for row in rows:
            for _ in counted.end_before(row[0]):
                pass
            if row[4] in (SPAN, OPERATOR):
                counted.begin(row)
        for _ in counted.end_before(1 << 63):
            pass
        matching.finish_counting()
        yield from self._walk(rows, ProfiledCalls(matching, self.first_step, noted))

    def _walk(self, rows: TorchRows, calls: ProfiledCalls) -> Iterator[TraceEvent]:
        for row in rows:
            for call in calls.end_before(row[0]):
                yield from self._of_processor(call, rows)
            yield from self._event(row, calls, rows)
        for call in calls.end_before(1 << 63):
            yield from self._of_processor(call, rows)

    def _event(self, row: Row, calls: ProfiledCalls, rows: TorchRows) -> Iterator[TraceEvent]:
        _, _, _, file, kind, thread, name, detail = row
        if kind in (SPAN, OPERATOR):
            calls.begin(row)
        if kind == SPAN and (mark := EVENT_MARK.fullmatch(name)):
            yield from self._beside_work(row, calls, rows, kind=mark[1], subject=mark[2], name=mark[3] or mark[1])
        elif kind == LAUNCH and WAITING.fullmatch(name):
            yield from self._beside_work(row, calls, rows, kind="sync", name=name)
        elif kind == LAUNCH and detail is not None:
            self.launches[file, detail] = (calls.nodes_at(file, thread, row[0]), calls.step_at(row[0]))
            if len(self.launches) > LAUNCHES_MAX:
                self.launches.popitem(last=False)
        elif kind == MEMORY:
            self._note_memory(rows.ranks[file], detail)
        elif kind == DEVICE:
            yield self._of_device(row, calls, rows)

    def _note_memory(self, rank: int | None, detail: list[Any]) -> None:
        kind, number, total = detail
        if type(total) is int and total >= 0 and type(number) is int:
            device = self.placement.gpu(number, rank) if kind == CUDA else self.placement.cpu(rank)
            self.memory[device] = total

    def _beside_work(self, row: Row, calls: ProfiledCalls, rows: TorchRows, **fields: Any) -> Iterator[TraceEvent]:
        """An event of a processor that computes no operator; none where the cluster names no such processor."""
        start, minus, _, file, _, thread, _, _ = row
        device = self.placement.cpu(rows.ranks[file])
        if device in self.known:
            fields |= {"device": device, "stream": self.streams.setdefault((file, thread), len(self.streams))}
            yield self._made(fields, start - rows.began, -minus, (), calls.step_at(start))

    def _of_processor(self, call: ProfiledCall, rows: TorchRows) -> Iterator[TraceEvent]:
        start, minus, _, file, kind, thread, name, _ = call.row
        if rows.has_devices or (kind == SPAN and not call.nodes):
            return
        device = self.placement.cpu(rows.ranks[file])
        stream = self.streams.setdefault((file, thread), len(self.streams))
        mark = NODE_MARK.fullmatch(name)
        name = (mark and mark[2]) or name
        for part, (begun, end) in enumerate(call.parts or [(start, start - minus)]):
            fields = {"kind": "kernel", "name": name, "device": device, "stream": stream}
            nodes = call.nodes[:1] if part else call.nodes
            yield self._made(fields, begun - rows.began, end - begun, nodes, call.step)

    def _of_device(self, row: Row, calls: ProfiledCalls, rows: TorchRows) -> TraceEvent:
        start, minus, _, file, _, _, name, detail = row
        category, device, stream, correlation, moved, collective, ranks, count, dtype = detail
        if type(device) is not int or type(stream) is not int or device < 0 or stream < 0:
            raise MalformedError(f"kernel {name[:80]!a} names no device and stream")
        launched = (file, correlation if type(correlation) is int else -1)
        nodes, step = self.launches.pop(launched, ((), calls.step_at(start)))
        placed, members = self.placement.gpu(device, rows.ranks[file]), self._members(ranks)
        fields: dict[str, Any] = {"kind": KINDS[category], "name": name, "device": placed, "stream": stream}
        if type(moved) is int and moved >= 0:
            fields["moved"] = moved
        if collective is not None and placed in members:
            fields |= {"kind": "collective", "name": str(collective), "members": members}
            if type(count) is int and count >= 0 and str(dtype) in BYTES:
                fields["moved"] = count * BYTES[str(dtype)]
        return self._made(fields, start - rows.began, -minus, nodes, step)

    def _members(self, ranks: object) -> tuple[str, ...]:
        """The devices of a group such as `[0, 1]`; none where one of its ranks has no device that was named."""
        numbers = [
            each for each in str(ranks).strip("[]").replace(" ", "").split(",") if each.isdecimal() and len(each) < 10
        ]
        devices = {self.placement.ranks.get(int(each), "") for each in numbers}
        return tuple(sorted(devices)) if "" not in devices else ()

    def _made(self, fields: dict[str, Any], start: int, duration: int, nodes: Nodes, step: int | None) -> TraceEvent:
        memory = self.memory.get(fields["device"])
        fields |= {"start": start, "duration": duration, "step": step, "memory": memory}
        return made_event(**fields, operator=nodes[0] if nodes else None, fused=nodes[1:] or None)

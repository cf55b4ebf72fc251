"""What a trace of torch.profiler holds, and for which nodes of the graph each call works."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from tallystick.core.errors import MalformedError
from tallystick.formats.store.traces import FUSED_MAX
from tallystick.recording.timelines.chrome_entries import Row
from tallystick.recording.timelines.graph_names import PRODUCT, CallWork, Matching, Nodes, Room, key, work

# What a trace of torch.profiler (Kineto) holds, as rows in order of time.

SPAN: Final = "span"
OPERATOR: Final = "operator"
LAUNCH: Final = "launch"
DEVICE: Final = "device"
MEMORY: Final = "memory"
CATEGORIES: Final = {
    "user_annotation": SPAN,
    "cpu_op": OPERATOR,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "kernel": DEVICE,
    "gpu_memcpy": DEVICE,
    "gpu_memset": DEVICE,
    "cpu_instant_event": MEMORY,
}
TIME_MAX: Final = 1 << 62


@dataclass(frozen=True)
class DevicePlaces:
    """The devices that the numbers in the files of a profiler mean: those of `host`, or of a rank of a group."""

    host: str
    ranks: Mapping[int, str] = field(default_factory=dict)

    def gpu(self, number: int, rank: int | None) -> str:
        """The device that the process of a rank calls `number`."""
        return self._of_rank(rank) or f"{self.host}/gpu{number}"

    def cpu(self, rank: int | None) -> str:
        """The processor of the process of a rank: that of the host in whose name the rank's device stands."""
        return f"{self._of_rank(rank).rpartition('/')[0] or self.host}/cpu"

    def _of_rank(self, rank: int | None) -> str:
        return "" if rank is None else self.ranks.get(rank, "")


def torch_row(entry: dict[str, Any], base: int, file: int, name: str) -> Row | None:
    """A call as a row `[start, -duration, file, kind, thread, name, detail]` in nanoseconds; `None` for other entries.

    `base` is added to all times of the file, whose number and `name` are given.
    """
    kind = CATEGORIES.get(str(entry.get("cat")))
    if kind is None or entry.get("ph") not in ("X", "i"):
        return None
    start, duration = base + nanoseconds(entry.get("ts"), name), nanoseconds(entry.get("dur", 0), name)
    arguments = entry.get("args")
    detail = _detail(kind, entry, arguments if isinstance(arguments, dict) else {})
    if kind == MEMORY and detail is None:
        return None
    return [start, -duration, file, kind, str(entry.get("tid")), str(entry.get("name")), detail]


def _detail(kind: str, entry: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """What else a row needs: a key, a correlation, a place, or bytes in use."""
    if kind == OPERATOR:
        name, dims = str(entry.get("name")), arguments.get("Input Dims")
        return [key(name, dims), *work(name, dims)]
    if kind == LAUNCH:
        correlation = arguments.get("correlation")
        return correlation if type(correlation) is int else None
    if kind == DEVICE:
        wanted = (
            "device",
            "stream",
            "correlation",
            "bytes",
            "Collective name",
            "Process Group Ranks",
            "Out msg nelems",
        )
        return [entry.get("cat"), *(arguments.get(name) for name in (*wanted, "dtype"))]
    if kind == MEMORY and entry.get("name") == "[memory]":
        return [arguments.get("Device Type"), arguments.get("Device Id"), arguments.get("Total Allocated")]
    return None


def nanoseconds(microseconds: object, name: str) -> int:
    """A time of Chrome's format; raises `MalformedError` unless it is a natural number of nanoseconds below 2**62."""
    try:
        found = Decimal(str(microseconds))
        if found.is_finite() and 0 <= found < TIME_MAX // 1000:
            return int(found * 1000)
    except InvalidOperation:
        pass
    raise MalformedError(f"{name}: {str(microseconds)[:40]!a} is no time in microseconds")


# Follows the calls of every thread of a profiled step, and says for which nodes of the graph each one works.

NODE_MARK: Final = re.compile(r"tally:node (\d{1,9})(?: (.+))?", re.DOTALL)
"""The number of a node, and a name for people."""
STEP_MARK: Final = re.compile(r"tally:step (\d{1,9})")
PROFILER_STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})")
OPTIMIZER_MARK: Final = "Optimizer.step#"
"""How PyTorch marks the step of an optimizer."""
BACKWARD: Final = "autograd::engine::evaluate_function"
"""How PyTorch marks a step of the backward pass: in the span of an optimizer, that of a closure."""


@dataclass
class ProfiledCall:
    """One call that is under way: for which nodes, and the calls inside of it that no node explains.

    `room` is what its nodes leave to the calls inside from `held_from` on, `own_room` what the call itself leaves to
    those inside of it. `is_foreign` is a call for which there was no room, `cuts` are the times of such calls inside.
    """

    row: Row
    step: int | None
    nodes: Nodes = ()
    is_operator: bool = False
    explains_some: bool = False
    is_told: bool = False
    others: list[ProfiledCall] = field(default_factory=list)
    room: Room | None = None
    own_room: Room | None = None
    is_foreign: bool = False
    held_from: int = 0
    cuts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """When it ends, in nanoseconds."""
        return int(self.row[0] - self.row[1])

    @property
    def is_update(self) -> bool:
        """Whether it is the span of an optimizer."""
        return bool(self.row[4] == SPAN and self.row[6].startswith(OPTIMIZER_MARK))

    def holds(self, time: int) -> bool:
        """Whether a call inside that begins at a time works for its nodes, or for nothing that is known."""
        return self.is_foreign or (bool(self.nodes) and time >= self.held_from)

    def times(self) -> Iterator[tuple[int, int]]:
        """When it works for its nodes: what is left between the cuts; nothing of a call without nodes."""
        begun = self.held_from
        for start, end in self.cuts:
            if start > begun:
                yield begun, start
            begun = max(begun, end)
        if self.nodes and (self.end > begun or self.row[0] == self.end):
            yield begun, self.end


@dataclass
class ProfiledCalls:
    """The calls under way on every thread, and the step that they belong to."""

    matching: Matching
    first_step: int | None
    marked: int | None = None
    profiler: int | None = None
    step_end: int = 0
    threads: dict[tuple[int, str], list[ProfiledCall]] = field(default_factory=dict)
    updates: dict[int, Room | None] = field(default_factory=dict)
    in_updates: dict[int, list[tuple[int | None, str, int, int]]] = field(default_factory=dict)

    def begin(self, row: Row) -> None:
        """A span or an operator begins."""
        start, minus, _, file, kind, thread, name, detail = row
        if kind == SPAN and self._begins_step(name, start - minus):
            return
        stack = self.threads.setdefault((file, thread), [])
        call = ProfiledCall(row, self.step_at(start), held_from=start)
        if self.matching.counting and name.startswith(BACKWARD):
            self._note_closure(file, call.end)
        holder = next((each for each in reversed(stack) if each.holds(start)), None)
        if holder is not None and kind == OPERATOR:
            self._fit(call, holder, stack, CallWork(*detail[1:]))
        elif holder is None and kind == SPAN:
            self._mark(call, name)
        elif holder is None and not any(each.is_operator for each in stack):
            nodes = self._take(call, stack, detail[0])
            call.nodes, call.is_operator = nodes or (), nodes is not None
            call.room = self.matching.names.room_of_all(call.nodes)
        stack.append(call)

    def _take(self, call: ProfiledCall, stack: list[ProfiledCall], key: str) -> Nodes | None:
        """The nodes of a call; those in the span of an optimizer are counted when its closure is known."""
        if self._is_outside(call.step):
            return None
        update = next((each for each in stack if each.is_update), None)
        if not self.matching.counting or update is None:
            return self.matching.take(call.step, key, call.row[0], call.end)
        if key not in self.matching.names.body:
            return None
        self.in_updates.setdefault(update.row[2], []).append((call.step, key, call.row[0], call.end))
        return ()

    def _fit(self, call: ProfiledCall, holder: ProfiledCall, stack: list[ProfiledCall], work: CallWork) -> None:
        """Take the work of a call from that of the call around it, and from the room of the nodes; else it is foreign.

        A call is done by those inside of it, so that a product in a product is counted once.
        """
        if holder.is_foreign or holder.room is None:
            return
        around = next((each.own_room for each in reversed(stack) if each.own_room is not None), None)
        call.own_room = Room(*((work.amount, 0) if work.kind == PRODUCT else (0, work.amount)), holder.room.families)
        if not (around is not None and around.admits(work)) and not holder.room.admits(work):
            call.is_foreign = True
            holder.cuts.append((call.row[0], call.end))

    def _mark(self, call: ProfiledCall, name: str) -> None:
        """Give a span the nodes that its name tells, with the room that they have in its step."""
        names, step = self.matching.names, call.step
        if match := NODE_MARK.fullmatch(name):
            call.nodes = (int(match[1]),)
            call.room = names.room_of_all(call.nodes)
        elif call.is_update and not self.matching.counting and len(names.update) <= FUSED_MAX:
            if self._is_outside(step):
                return
            call.nodes, room = names.update, names.room_of_all(names.update)
            call.held_from = max(call.held_from, self.matching.closures.get(call.row[2], 0))
            call.room = room if step is None else self.updates.setdefault(step, room)

    def _note_closure(self, file: int, end: int) -> None:
        """A backward pass is part of every span of an optimizer of its process that is open."""
        for (where, _), stack in self.threads.items():
            for each in stack if where == file else ():
                if each.is_update and end <= each.end:
                    self.matching.closures[each.row[2]] = max(end, self.matching.closures.get(each.row[2], 0))

    def _begins_step(self, name: str, end: int) -> bool:
        if match := STEP_MARK.fullmatch(name):
            self.marked, self.step_end, self.matching.is_marked = int(match[1]), end, True
            return True
        if match := PROFILER_STEP.fullmatch(name):
            number = int(match[1])
            self.profiler = number if self.profiler is None else self.profiler
            if self.first_step is not None:
                self.marked, self.step_end = self.first_step + number - self.profiler, end
                self.matching.is_marked = True
            return True
        return False

    def _is_outside(self, step: int | None) -> bool:
        """Whether a file that marks its steps has a call beside them: that is none of the training."""
        return step is None and self.matching.is_marked

    def step_at(self, time: int) -> int | None:
        """The step that runs at a time: the one marked, or the first one where the file marks none."""
        if self.marked is not None:
            return self.marked if time < self.step_end else None
        return self.first_step if self.profiler is None else None

    def nodes_at(self, file: int, thread: str, time: int) -> Nodes:
        """The nodes for which a thread works now: all of them for its first kernel, for others the first of them."""
        stack = self.threads.get((file, thread), [])
        call = next((each for each in reversed(stack) if each.holds(time)), None)
        if call is None or call.is_foreign:
            return ()
        call.is_told, was_told = True, call.is_told
        return call.nodes[:1] if was_told else call.nodes

    def end_before(self, time: int) -> Iterator[ProfiledCall]:
        """End every call that is over at a time; yields the calls that are device work, in no order."""
        for stack in self.threads.values():
            while stack and stack[-1].end <= time:
                call = stack.pop()
                closed = self.matching.closures.get(call.row[2], 0)
                for step, of_call, start, end in self.in_updates.pop(call.row[2], ()):
                    if start < closed:
                        self.matching.take(step, of_call, start, end)
                yield from _ended(call, stack)


def _ended(call: ProfiledCall, stack: list[ProfiledCall]) -> Iterator[ProfiledCall]:
    """A call that explains a node is work; of the others the outermost is, unless a call inside explains a node."""
    if call.nodes:
        for each in stack:
            each.explains_some = True
        yield call
        yield from call.others
    elif call.is_foreign:
        yield call
    elif not any(each.holds(call.row[0]) for each in stack):
        left = call.others if call.explains_some or call.row[4] == SPAN else [call]
        if stack:
            stack[-1].others += left
        else:
            yield from left

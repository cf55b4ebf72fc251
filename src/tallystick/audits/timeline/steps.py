"""What holds in every step: each operator ran, after those it reads, in no less time than its device needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from tallystick.audits.timeline.graph_work import Comparing, Durations, NodeWork, TraceLimits
from tallystick.formats.cluster import Cluster
from tallystick.formats.store.traces import TraceEvent

SECOND: Final = 10**9
OPEN_MAX: Final = 64
"""The steps that may be under way at one time."""
BEFORE_MAX: Final = 64
"""How many nodes before one that was not seen are compared with those behind it."""


@dataclass
class NodeRun:
    """When one node ran in one step, by device: from the first of its kernels to the last."""

    times: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, event: TraceEvent) -> None:
        """Add one kernel of the node."""
        start, end = self.times.get(event.device, (event.start, event.end))
        self.times[event.device] = (min(start, event.start), max(end, event.end))

    def end_for(self, device: str) -> int:
        """When its results were there for a device: when it ended there, or first on another one."""
        return self.times[device][1] if device in self.times else self.first_end

    @property
    def first_end(self) -> int:
        """When the first device had run it."""
        return min(end for _, end in self.times.values())

    @property
    def last_start(self) -> int:
        """When the last device began it."""
        return max(start for start, _ in self.times.values())


@dataclass
class TracedStep:
    """The events of one step: those of nodes, and where kernels ran that name none."""

    nodes: dict[int, NodeRun] = field(default_factory=dict)
    fused: dict[int, int] = field(default_factory=dict)
    spent: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    spent_on: defaultdict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    counts: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    unexplained: list[tuple[int, int]] = field(default_factory=list)

    def see(self, place: int, event: TraceEvent) -> None:
        """Add one event of this step."""
        if event.kind == "kernel" and event.operator is None:
            self.unexplained.append((event.start, event.end))
        for number in event.operators:
            self.nodes.setdefault(number, NodeRun()).add(event)
            self.fused[self.head(number)] = self.head(event.operators[0])
        if event.operator is not None:
            self.spent[event.operator] += event.duration
            self.spent_on[event.operator, event.device] += event.duration
            self.counts[event.operator] += 1

    def head(self, number: int) -> int:
        """The node that stands for all that were fused with this one."""
        while (above := self.fused.get(number, number)) != number:
            number = above
        return number


@dataclass
class TracedSteps:
    """Gathers the events of the steps under way, and checks a step when it is over."""

    work: Mapping[int, NodeWork]
    cluster: Cluster
    limits: TraceLimits
    compared: Comparing
    durations: Durations
    open: dict[int | None, TracedStep] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    judged: int = 0
    undecided: dict[int, int] = field(default_factory=dict)
    """How many operators of a step may be among the kernels that nobody explains."""

    def see(self, place: int, event: TraceEvent) -> None:
        """Check one event's operators, and note it for its step."""
        if event.kind not in ("kernel", "collective", "memcpy"):
            return
        for number in event.operators:
            why = f"{event.name}: the graph has no node {number}"
            self.compared.check("operator", number in self.work, f"event {place}", why)
        if event.step in self.over:
            why = f"step {event.step} goes on after {OPEN_MAX} later ones had begun"
            self.compared.check("step order", False, f"event {place}", why)
            return
        if event.step is None and event.operator is None:
            return
        self.open.setdefault(event.step, TracedStep()).see(place, event)
        if len(self.open) > OPEN_MAX:
            self._judge(next(iter(self.open)))

    def finish(self) -> None:
        """Check the steps that are left."""
        for number in [*self.open]:
            self._judge(number)

    def _judge(self, number: int | None) -> None:
        step = self.open.pop(number)
        if number is not None:
            self.over.add(number)
        if not step.nodes:
            return
        self.judged += 1
        where = "" if number is None else f"step {number}"
        self._check_order(step, where)
        self._check_all_ran(step, where, number or 0)
        self._check_speed(step, where)

    def _check_order(self, step: TracedStep, where: str) -> None:
        """Nothing starts before all that it reads has ended; what has no event ends when all that it reads has."""
        seen: dict[int, frozenset[int]] = {}
        for number, work in self.work.items():
            before = frozenset[int]().union(*(seen[read] for read in work.reads))
            if number in step.nodes:
                for device, (start, _) in step.nodes[number].times.items():
                    self._check_after(step, before, number, device, start, where)
            seen[number] = frozenset({number}) if number in step.nodes else _latest_of(before, step)

    def _check_after(
        self, step: TracedStep, before: frozenset[int], number: int, device: str, start: int, where: str
    ) -> None:
        """A node starts on a device behind those of `before` that were not computed by the same kernel."""
        others = [other for other in before if step.head(other) != step.head(number)]
        if not others:
            return
        ends = {other: step.nodes[other].end_for(device) for other in others}
        last = max(others, key=ends.__getitem__)
        is_here = device in step.nodes[last].times
        allowed, early = self.limits.resolution if is_here else self.limits.skew, ends[last] - start
        why = f"starts {early:,} ns before node {last} has ended, which it reads"
        self.compared.check("order", early <= allowed, _at(where, self.work[number]), why, early, allowed)

    def _check_all_ran(self, step: TracedStep, where: str, number: int) -> None:
        earliest, latest = _earliest(self.work, step), _latest(self.work, step)
        for node, work in self.work.items():
            if not work.must_run:
                continue
            if node in step.nodes:
                self.compared.check("every operator", True, "", "")
            elif any(start < latest[node] and end > earliest[node] for start, end in step.unexplained):
                self.undecided[number] = self.undecided.get(number, 0) + 1
            else:
                why = "no event names it, and no unexplained kernel ran when it must have"
                self.compared.check("every operator", False, _at(where, work), why)

    def _check_speed(self, step: TracedStep, where: str) -> None:
        """The nodes that were computed together take the time that their work needs on the fastest of their devices."""
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for number in step.nodes:
            if number in self.work:
                groups[step.head(number)].append(number)
        needs: defaultdict[str, int] = defaultdict(int)
        for numbers in groups.values():
            device, needed = self._check_group(step, numbers, where)
            needs[device] += needed
        for device, needed in needs.items():
            self._check_device(step, device, needed, where)

    def _check_device(self, step: TracedStep, device: str, needed: int, where: str) -> None:
        """All streams of a device together are no faster than it is."""
        times = [run.times[device] for run in step.nodes.values() if device in run.times]
        if not needed or not times:
            return
        spent = max(end for _, end in times) - min(start for start, _ in times) + self.limits.resolution
        why = f"all operators on {device} took {spent:,} ns; at its peak their operations need {needed:,}"
        self.compared.check("peak", spent >= needed, where or device, why, needed, spent)

    def _check_group(self, step: TracedStep, numbers: list[int], where: str) -> tuple[str, int]:
        """Check nodes that were computed together; returns their device and the time they need, 0 if it has parts."""
        works = [self.work[number] for number in numbers]
        devices = {device for number in numbers for device in step.nodes[number].times}
        spent = sum(step.spent[number] for number in numbers)
        slack = self.limits.resolution * sum(step.counts[number] for number in numbers)
        place = _at(where, works[0])
        here = {device: sum(step.spent_on[number, device] for number in numbers) for device in devices}
        self.durations.add(devices, works, here, where)
        needed = self._needed(works, devices)
        if needed is not None:
            why = f"took {spent:,} ns; at the peak of {min(devices)} its operations need {needed:,}"
            self.compared.check("peak", spent + slack >= needed, place, why, needed, spent + slack)
        if len(devices) == 1 and (device := self.cluster.by_name.get(min(devices))) is not None:
            self._check_memory(works, device.bandwidth, device.memory, spent + slack, place)
        return min(devices), needed or 0 if len(devices) == 1 else 0

    def _needed(self, works: list[NodeWork], devices: set[str]) -> int | None:
        """The nanoseconds that the operations need; None where the peak of a device for a dtype is not stated."""
        needed = 0.0
        for work in works:
            peaks = [self.cluster.by_name[name].peak.get(work.dtype) for name in devices & self.cluster.by_name.keys()]
            rates = [rate for rate in peaks if rate is not None]
            if not rates or len(rates) < len(peaks):
                return None
            needed += work.flops / self.limits.saving * SECOND / max(rates)
        return round(needed)

    def _check_memory(
        self, works: list[NodeWork], bandwidth: int | None, memory: int | None, spent: int, place: str
    ) -> None:
        largest = max(work.largest for work in works)
        if memory is not None:
            why = f"its operands and results are {largest:,} bytes, more than the {memory:,} of its device"
            self.compared.check("capacity", largest <= memory, place, why, largest, memory)
        if bandwidth is not None and len(works) == 1:
            needed = max(works[0].bytes - self.limits.cached, 0) * SECOND // bandwidth
            why = f"took {spent:,} ns, and the memory of its device needs {needed:,} for its operands and results"
            self.compared.check("bandwidth", spent >= needed, place, why, needed, spent)


def _latest_of(nodes: frozenset[int], step: TracedStep) -> frozenset[int]:
    """Those that ended last, so that a long graph of which few nodes were seen costs no more than others."""
    if len(nodes) <= BEFORE_MAX:
        return nodes
    return frozenset(nlargest(BEFORE_MAX, nodes, key=lambda number: step.nodes[number].first_end))


def _earliest(work: Mapping[int, NodeWork], step: TracedStep) -> dict[int, int]:
    """The nanosecond before which a node cannot have begun: when all that it reads has ended."""
    ended: dict[int, int] = {}
    for number, node in work.items():
        before = max((ended[read] for read in node.reads), default=0)
        ended[number] = step.nodes[number].first_end if number in step.nodes else before
    return {n: max((ended[read] for read in node.reads), default=0) for n, node in work.items()}


def _latest(work: Mapping[int, NodeWork], step: TracedStep) -> dict[int, int]:
    """The nanosecond by which a node must have ended: when the first that reads it begins; else the end of the step."""
    over = max(end for run in step.nodes.values() for _, end in run.times.values())
    latest = dict.fromkeys(work, max([over, *(end for _, end in step.unexplained)]))
    for number in reversed([*work]):
        begun = step.nodes[number].last_start if number in step.nodes else latest[number]
        for read in work[number].reads:
            latest[read] = min(latest[read], begun)
    return latest


def _at(where: str, work: NodeWork) -> str:
    return f"{where}{where and ', '}node {work.node.number} {work.node.operator}"

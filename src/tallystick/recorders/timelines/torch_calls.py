"""Follows the calls of every thread of a profiled step, and says for which nodes of the graph each one works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tallystick.recorders.timelines.matching import Matching, Nodes
from tallystick.recorders.timelines.sorted_rows import Row
from tallystick.recorders.timelines.torch_rows import OPERATOR, SPAN
from tallystick.traces.event import FUSED_MAX

NODE_MARK: Final = re.compile(r"tally:node (\d{1,9})(?: (.+))?", re.DOTALL)
"""The number of a node, and a name for people."""
STEP_MARK: Final = re.compile(r"tally:step (\d{1,9})")
PROFILER_STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})")
OPTIMIZER_MARK: Final = "Optimizer.step#"
"""How PyTorch marks the step of an optimizer."""


@dataclass
class ProfiledCall:
    """One call that is under way: for which nodes, and the calls inside of it that no node explains."""

    row: Row
    end: int
    nodes: Nodes
    is_operator: bool
    step: int | None
    explains_some: bool = False
    is_told: bool = False
    others: list[ProfiledCall] = field(default_factory=list)


@dataclass
class ProfiledCalls:
    """The calls under way on every thread, and the step that they belong to."""

    matching: Matching
    first_step: int | None
    marked: int | None = None
    profiler: int | None = None
    step_end: int = 0
    threads: dict[tuple[int, str], list[ProfiledCall]] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)

    def begin(self, row: Row) -> None:
        """A span or an operator begins."""
        start, minus, _, file, kind, thread, name, _ = row
        if kind == SPAN and self._begins_step(name, start - minus):
            return
        stack = self.threads.setdefault((file, thread), [])
        within = next((call for call in reversed(stack) if call.nodes or call.is_operator), None)
        step = self.step_at(start)
        nodes: Nodes | None = None
        if within is None or not within.nodes:
            nodes = self._span_nodes(name) if kind == SPAN else self._operator_nodes(stack, step, row)
        stack.append(ProfiledCall(row, start - minus, nodes or (), kind == OPERATOR and nodes is not None, step))

    def _operator_nodes(self, stack: list[ProfiledCall], step: int | None, row: Row) -> Nodes | None:
        if any(call.is_operator for call in stack):
            return None
        return self.matching.take(step, row[7], row[0], row[0] - row[1])

    def _span_nodes(self, name: str) -> Nodes:
        names = self.matching.names
        if match := NODE_MARK.fullmatch(name):
            return (int(match[1]),)
        return names.update if name.startswith(OPTIMIZER_MARK) and len(names.update) <= FUSED_MAX else ()

    def _begins_step(self, name: str, end: int) -> bool:
        if match := STEP_MARK.fullmatch(name):
            self.marked, self.step_end = int(match[1]), end
            return True
        if match := PROFILER_STEP.fullmatch(name):
            number = int(match[1])
            self.profiler = number if self.profiler is None else self.profiler
            if self.first_step is not None:
                self.marked, self.step_end = self.first_step + number - self.profiler, end
            return True
        return False

    def step_at(self, time: int) -> int | None:
        """The step that runs at a time: the one marked, or the first one where the file marks none."""
        if self.marked is not None:
            return self.marked if time < self.step_end else None
        return self.first_step if self.profiler is None else None

    def nodes_at(self, file: int, thread: str) -> Nodes:
        """The nodes for which a thread works now: all of them for its first kernel, for others the first of them."""
        call = next((each for each in reversed(self.threads.get((file, thread), [])) if each.nodes), None)
        if call is None:
            return ()
        call.is_told, was_told = True, call.is_told
        return call.nodes[:1] if was_told else call.nodes

    def end_before(self, time: int) -> Iterator[ProfiledCall]:
        """End every call that is over at a time; yields the calls that are device work, in no order."""
        for stack in self.threads.values():
            while stack and stack[-1].end <= time:
                yield from _ended(stack.pop(), stack)


def _ended(call: ProfiledCall, stack: list[ProfiledCall]) -> Iterator[ProfiledCall]:
    """A call that explains a node is work; of the others the outermost is, unless a call inside explains a node."""
    above = stack[-1] if stack else None
    if call.nodes:
        if any(each.nodes for each in stack):
            return
        for each in stack:
            each.explains_some = True
        yield call
        return
    left = call.others if call.explains_some or call.row[4] == SPAN else [call]
    if above is None:
        yield from left
    else:
        above.others += left

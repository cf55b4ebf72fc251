"""How much longer operators, copies and collectives took than their work needs, measured against each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high
from typing import Final, NamedTuple

from tallystick.audits.timeline.graph_work import NodeWork

SECOND: Final = 10**9
LAUNCH_MAX: Final = 10_000
"""Nanoseconds that an operator takes besides its work, at most: where all operators are large, none shows it."""
SHOWN: Final = 3
BYTES_LEAST: Final = 1 << 12
"""Operators on less than this are launch and no work."""


@dataclass
class Excess:
    """Device time beyond what the limit allows, and the longest of what took it."""

    nanoseconds: int = 0
    longest: list[tuple[int, str]] = field(default_factory=list)

    def add(self, nanoseconds: int, longest: int, told: str) -> None:
        """Add time; `told` says of what, and `longest` by how much it was too long in the worst case."""
        if nanoseconds > 0:
            self.join(Excess(nanoseconds, [(longest, told)]))

    def join(self, other: Excess) -> None:
        """Add what was too long elsewhere."""
        self.nanoseconds += other.nanoseconds
        self.longest = sorted([*self.longest, *other.longest], reverse=True)[:SHOWN]


class NodeGroup(NamedTuple):
    """Nodes that were computed together on a device: the first of them, and their work."""

    device: str
    node: int
    nodes: int
    flops: int
    bytes: int


@dataclass
class Spans:
    """How often a group was computed, by powers of two of the nanoseconds it took, and the longest of them."""

    times: dict[int, tuple[int, int]] = field(default_factory=dict)
    shortest: int = 1 << 62
    longest: tuple[int, str] = (0, "")

    def add(self, spent: int, where: str) -> None:
        """Add the time of one step."""
        count, whole = self.times.get(spent.bit_length(), (0, 0))
        self.times[spent.bit_length()] = (count + 1, whole + spent)
        self.shortest = min(self.shortest, spent)
        if spent > self.longest[0]:
            self.longest = (spent, where)

    def beyond(self, allowed: int) -> int:
        """The time beyond what is allowed in a step, of all steps together."""
        return sum(max(0, whole - count * allowed) for count, whole in self.times.values())


@dataclass
class Durations:
    """The times of all groups; memory grows with the graph, not with the trace.

    How fast a device is, its own operators say: half of them are at least so fast. What a cluster declares is not used,
    because a slow device would excuse everything.
    """

    longer: float
    seen: defaultdict[NodeGroup, Spans] = field(default_factory=lambda: defaultdict(Spans))

    def add(self, devices: Iterable[str], works: Sequence[NodeWork], spent: Mapping[str, int], where: str) -> None:
        """Add nodes that were computed together in a step."""
        flops, moved = sum(work.flops for work in works), sum(work.largest for work in works)
        for device in devices:
            self.seen[NodeGroup(device, works[0].node.number, len(works), flops, moved)].add(spent[device], where)

    def excess(self, named: Mapping[int, NodeWork]) -> Excess:
        """What took more than `longer` times what its work needs."""
        found = Excess()
        for device in {group.device for group in self.seen}:
            groups = {group: spans for group, spans in self.seen.items() if group.device == device}
            launch, flops, moved = _speeds(groups)
            for group, spans in groups.items():
                needed = group.nodes * launch + max(group.flops / flops, group.bytes / moved)
                allowed = int(self.longer * needed)
                took, where = spans.longest
                what = _at(where, named[group.node], group.nodes)
                told = f"{what} took {took:,} ns, and its work needs about {needed:,.0f}"
                found.add(spans.beyond(allowed), took - allowed, told)
        return found


def _speeds(groups: Mapping[NodeGroup, Spans]) -> tuple[int, float, float]:
    """Nanoseconds of a launch, and operations and bytes in a nanosecond, as the groups of a device show them."""
    single = [spans.shortest for group, spans in groups.items() if group.nodes == 1]
    launch = min([LAUNCH_MAX, *([median_high(single)] if single else [])])
    working = {group: max(1, spans.shortest) for group, spans in groups.items() if group.bytes >= BYTES_LEAST}
    moved = median_high([group.bytes / spent for group, spent in working.items()] or [1.0])
    heavy = [group.flops / spent for group, spent in working.items() if group.flops > group.bytes]
    return launch, median_high(heavy or [moved]), moved


def _at(where: str, work: NodeWork, nodes: int) -> str:
    more = f" and {nodes - 1} more" if nodes > 1 else ""
    return f"{where}{where and ', '}node {work.node.number} {work.node.operator}{more}"

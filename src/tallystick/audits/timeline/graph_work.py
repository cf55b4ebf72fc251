"""What each node of a graph needs, how much longer it took, and how far a clock may be wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high
from typing import Final, NamedTuple

from tallystick.programs.graph import Graph, Node
from tallystick.programs.inspection import Inspection, update_nodes
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Findings

# How much a clock may be wrong before a trace is rejected for it.


@dataclass(frozen=True)
class TraceLimits:
    """What an audit of a trace allows.

    `resolution` and `skew` are nanoseconds: how far two times of one device, and of two devices, may be wrong.
    `unexplained` is the share of device time that no operator accounts for, up to which a trace is accepted.
    `saving` is how many times less work than its definition a kernel may do: Winograd's convolutions and causal
    attention do less. `cached` are the bytes that a kernel may find in caches. What takes `longer` times the time that
    its work needs is named, and the rest of its time counts as unexplained, but for `stall` nanoseconds a step: so long
    a busy machine may stop a process.
    """

    resolution: int = 1000
    skew: int = 100_000
    unexplained: float = 0.1
    saving: float = 4.0
    cached: int = 1 << 28
    longer: float = 100.0
    stall: int = 30_000_000


DEFAULT = TraceLimits()


# Counts the comparisons of each check over millions of events, and keeps the first that disagree.

KEPT: Final = 12


@dataclass
class Comparing:
    """All comparisons of an audit: how many each check made, how many disagree, and the first of these."""

    made: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    first: Findings = field(default_factory=Findings)

    def check(
        self, name: str, is_good: bool, where: str, why: str, distance: float = 1.0, allowed: float = 0.0
    ) -> None:
        """Note one comparison; `why` says what is wrong where it is not good."""
        self.made[name] += 1
        if not is_good:
            self.bad[name] += 1
            if self.bad[name] <= KEPT:
                self.first.note(Finding(distance, allowed, name, where, why))

    def findings(self) -> Iterator[Finding]:
        """One finding for each check that agreed throughout, and those that disagree."""
        for name, made in self.made.items():
            if not self.bad[name]:
                yield Finding(0.0, 0.0, name, detail=f"{made:,} compared")
            yield from (finding for finding in self.first.seen if finding.name == name)
            if self.bad[name] > KEPT:
                yield Finding(1.0, 0.0, name, detail=f"and {self.bad[name] - KEPT:,} more")


# What each node of a graph needs: the nodes before it, operations and bytes; and whether it must be seen.

OBSERVED = ("activation.", "gradient_norm", "position.")
"""Outputs that a recorder computes beside the step: the training itself may not compute them."""

IN_PASSING = frozenset(
    {
        *("_to_copy", "clone", "copy", "detach", "fill", "full", "full_like", "lift_fresh_copy", "ones", "ones_like"),
        *("zeros", "zeros_like", "arange", "constant", "convert", "iota", "broadcast_in_dim"),
    }
)
"""Operators that make or copy values and compute none: a framework may do that within another kernel, or not at all."""


@dataclass(frozen=True)
class NodeWork:
    """One node: the nodes that it reads, its least work, and whether a device must have run it.

    `flops` are those of its definition, `bytes` the operands and results that it certainly goes through, `largest` all
    of its operands and results; `dtype` is that of its largest operand. Views run nowhere, and what is
    `IN_PASSING` may be part of another kernel.
    """

    node: Node
    reads: tuple[int, ...]
    flops: int
    bytes: int
    largest: int
    dtype: str
    must_run: bool
    is_update: bool


def graph_work(graph: Graph) -> dict[int, NodeWork]:
    """The work of all nodes of a graph, by number, in an order of execution."""
    inspection = Inspection(graph)
    needed, update = _needed(inspection), {*update_nodes(graph)}
    return {node.number: _work(inspection, node, node.number in needed, node.number in update) for node in graph.nodes}


def _work(inspection: Inspection, node: Node, is_needed: bool, is_update: bool) -> NodeWork:
    cost = inspection.costs[node.number]
    values = [inspection.specs[ref] for ref in {*node.refs, *(ref for ref in node.outputs if ref)}]
    largest = max(values, key=lambda spec: spec.nbytes, default=None)
    whole = sum(spec.nbytes for spec in values)
    is_scalar = all(spec.size <= 1 for spec in values)  # as a learning rate: a processor may do that in passing
    goes_through = cost.flops >= max((spec.size for spec in values), default=0)  # not so where rows are looked up
    return NodeWork(
        node,
        inspection.reads(node.number),
        cost.flops,
        whole if goes_through else 0,
        whole,
        "" if largest is None else largest.dtype,
        is_needed and cost.bytes_moved > 0 and node.operator.split(".")[1] not in IN_PASSING and not is_scalar,
        is_update,
    )


def _needed(inspection: Inspection) -> set[int]:
    """The nodes that an output needs which is not only observed."""
    graph = inspection.graph
    wanted = {output.value for output in graph.outputs if not output.name.startswith(OBSERVED)}
    waiting = [node.number for node in graph.nodes if wanted & {*filter(None, node.outputs)}]
    needed: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += inspection.reads(number)
    return needed


# How much longer operators, copies and collectives took than their work needs, measured against each other.

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

    def add(self, nanoseconds: int, longest: int, what: str) -> None:
        """Add time; `told` says of what, and `longest` by how much it was too long in the worst case."""
        if nanoseconds > 0:
            self.join(Excess(nanoseconds, [(longest, what)]))

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
        excess = Excess()
        for device in {group.device for group in self.seen}:
            groups = {group: spans for group, spans in self.seen.items() if group.device == device}
            launch, flops, moved = _speeds(groups)
            for group, spans in groups.items():
                needed = group.nodes * launch + max(group.flops / flops, group.bytes / moved)
                allowed = int(self.longer * needed)
                took, where = spans.longest
                what = _at(where, named[group.node], group.nodes)
                line = f"{what} took {took:,} ns, and its work needs about {needed:,.0f}"
                excess.add(spans.beyond(allowed), took - allowed, line)
        return excess


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

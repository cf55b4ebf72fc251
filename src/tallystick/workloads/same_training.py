"""Whether two step graphs train alike: they carry the same state, and update it in the same way.

A run may have several step graphs, for batches of several shapes. Their losses and gradients are of different sizes
inside. What an optimizer makes of a gradient is one program: the nodes between `gradients.<parameter>` and the new
weights and slots are compared one by one. A parameter without a gradient is left as it is, and may have one in another
graph, with slots that begin there.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.workloads.names import BATCH, WEIGHTS, parameter_of

GRADIENTS = "gradients."
SCHEDULE = "schedule."
AVERAGES = "ema."
COUNTERS = "position."


def difference(first: Graph, other: Graph, alike: Graph | None) -> str:
    """Names the first tensor that two step graphs of one training treat differently; empty if there is none.

    `alike` is a graph whose optimizer has the settings of `other`: usually `first`; `None` if there is no such graph.
    """
    moved = trained_by(first) ^ trained_by(other)
    return (
        _of_inputs(first, other, moved)
        or _of_outputs(first, other, moved)
        or _of_frozen(other)
        or ("" if alike is None else _of_updates(alike, other))
    )


def trained_by(graph: Graph) -> frozenset[str]:
    """The parameters that have a gradient in a step graph."""
    names = (each.name for each in graph.outputs)
    return frozenset(name.removeprefix(GRADIENTS) for name in names if name.startswith(GRADIENTS))


def _of_inputs(first: Graph, other: Graph, moved: Set[str]) -> str:
    wanted, given = (
        {each.name: (each.role, each.spec) for each in graph.inputs if not each.name.startswith((BATCH, SCHEDULE))}
        for graph in (first, other)
    )
    wrong = (name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    strange = sorted(name for name in wrong if name in wanted.keys() & given.keys() or not _is_slot_of(name, moved))
    return f"{strange[0]} is another input" if strange else ""


def _of_outputs(first: Graph, other: Graph, moved: Set[str]) -> str:
    wanted, given = ({each.name for each in graph.outputs} for graph in (first, other))
    wrong = (name for name in wanted ^ given if not name.startswith(GRADIENTS))
    strange = sorted(name for name in wrong if not _is_slot_of(name, moved))
    return f"{strange[0]} is an output of one of them" if strange else ""


def _is_slot_of(name: str, parameters: Set[str]) -> bool:
    return name.startswith("optimizer.") and parameter_of(name) in parameters


def _of_frozen(graph: Graph) -> str:
    """A weight or slot of a parameter without a gradient is what it was."""
    trained = trained_by(graph)
    for each in graph.outputs:
        parameter = parameter_of(each.name)
        if parameter and parameter not in trained and each.value != each.name:
            return f"{each.name} has no gradient, and is changed"
    return ""


def _of_updates(alike: Graph, other: Graph) -> str:
    pairs = _Pairs(_Values.of(alike), _Values.of(other))
    averaging = _Pairs(_Values.of(alike, WEIGHTS), _Values.of(other, WEIGHTS))
    both = trained_by(alike) & trained_by(other)
    for name in sorted(pairs.first.outputs.keys() & pairs.other.outputs.keys()):
        compared = averaging if name.startswith(AVERAGES) else pairs
        is_compared = name.startswith((COUNTERS, AVERAGES)) or parameter_of(name) in both
        if is_compared and not compared.are_same(pairs.first.outputs[name], pairs.other.outputs[name]):
            return f"{name} is updated otherwise"
    return ""


@dataclass(frozen=True)
class _Values:
    """The values of a graph: what gives each, and the names of those where a comparison ends."""

    outputs: dict[str, Ref]
    made: dict[Ref, tuple[Node, int]]
    named: dict[Ref, object]

    @classmethod
    def of(cls, graph: Graph, ends: str = GRADIENTS) -> _Values:
        outputs = {each.name: each.value for each in graph.outputs}
        made = {ref: (node, place) for node in graph.nodes for place, ref in enumerate(node.outputs) if ref is not None}
        named: dict[Ref, object] = {each.name: each.name for each in graph.inputs}
        named |= {each.name: (each.spec, each.digest) for each in graph.constants}
        named |= {ref: f"new {name}" for name, ref in outputs.items() if name.startswith(ends)}
        return cls(outputs, made, named)


@dataclass
class _Pairs:
    """Compares values of two graphs; what was compared once is not looked at again."""

    first: _Values
    other: _Values
    seen: set[tuple[Ref, Ref]] = field(default_factory=set)

    def are_same(self, one: Ref, two: Ref) -> bool:
        """Whether both values are made alike from gradients, state and schedule."""
        waiting = [(one, two)]
        while waiting:
            pair = waiting.pop()
            if pair in self.seen:
                continue
            self.seen.add(pair)
            read = self._read(*pair)
            if read is None:
                return False
            waiting += read
        return True

    def _read(self, one: Ref, two: Ref) -> list[tuple[Ref, Ref]] | None:
        """The values that two values are made from, in pairs; `None` if they are made otherwise."""
        if one in self.first.named or two in self.other.named:
            return [] if self.first.named.get(one) == self.other.named.get(two) else None
        (mine, place), (theirs, its) = self.first.made[one], self.other.made[two]
        if place != its or _without_operands(mine) != _without_operands(theirs):
            return None
        left, right = _operands(mine), _operands(theirs)
        if [ref is None for ref in left] != [ref is None for ref in right]:
            return None
        return [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]


def _without_operands(node: Node) -> object:
    places = {name: len(each) if isinstance(each, tuple) else None for name, each in node.operands.items()}
    return node.operator, node.attributes, node.results, places


def _operands(node: Node) -> list[Ref | None]:
    found: list[Ref | None] = []
    for name in sorted(node.operands):
        each = node.operands[name]
        found += each if isinstance(each, tuple) else (each,)
    return found

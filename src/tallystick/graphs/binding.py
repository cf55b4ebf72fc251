"""Data bound to the values of a graph: what is bound, what a replay still needs, and what can be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tallystick.errors import MalformedError, UsageError
from tallystick.graphs.admission import check_constants
from tallystick.graphs.graph import Graph, Node, Ref, Role
from tallystick.graphs.slicing import subgraph
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor


class Coverage(StrEnum):
    """How much of a graph is bound; the first member that applies.

    `full`: every value. `state`: every input and constant, including weights and RNG state, so that everything can be
    replayed. `ends`: the inputs that are new in each step and the outputs, but not the whole state. `partial`: anything
    else.
    """

    FULL = "full"
    STATE = "state"
    ENDS = "ends"
    PARTIAL = "partial"


@dataclass(frozen=True)
class Binding:
    """A graph and tensors for some of its values, each of the value's spec."""

    graph: Graph
    values: Mapping[Ref, Tensor]

    @property
    def coverage(self) -> Coverage:
        """The first `Coverage` that applies."""
        graph, bound = self.graph, self.values.keys()
        if graph.specs().keys() <= bound:
            return Coverage.FULL
        if {each.name for each in graph.sources} <= bound:
            return Coverage.STATE
        fresh = {each.name for each in graph.inputs if each.role in {Role.INPUT, Role.CUT}}
        return Coverage.ENDS if fresh | {each.value for each in graph.outputs} <= bound else Coverage.PARTIAL

    def missing(self, wanted: Iterable[int]) -> tuple[Ref, ...]:
        """The unbound inputs and constants that a replay of the nodes with these numbers needs, in the graph's order.

        Empty if the nodes can be replayed. A bound value is never recomputed. Raises `UsageError` for a number that
        the graph does not have.
        """
        needed = self._needed(set(wanted))
        sources = (each.name for each in self.graph.sources)
        return tuple(name for name in sources if name in needed and name not in self.values)

    def replayable(self) -> tuple[Graph, ...]:
        """The largest slices that can be replayed from the bound values; no slice reads a value of another."""
        numbers = self._computable()
        groups = _connected([node for node in self.graph.nodes if node.number in numbers])
        return tuple(subgraph(self.graph, group) for group in groups)

    def compared(self, part: Graph) -> tuple[Ref, ...]:
        """The bound values that a replay of the slice `part` computes: those it can be compared with."""
        return tuple(ref for node in part.nodes for ref in node.outputs if ref is not None and ref in self.values)

    def _needed(self, numbers: set[int]) -> set[Ref]:
        lacking = sorted(numbers - {node.number for node in self.graph.nodes})
        if lacking:
            raise UsageError(f"the graph has no node {lacking[0]}")
        needed: set[Ref] = set()
        for node in reversed(self.graph.nodes):
            if node.number in numbers or needed.intersection(filter(None, node.outputs)):
                needed.update(ref for ref in node.refs if ref not in self.values)
        return needed

    def _computable(self) -> set[int]:
        known, found = set(self.values), set[int]()
        for node in self.graph.nodes:
            if known.issuperset(node.refs):
                found.add(node.number)
                known.update(filter(None, node.outputs))
        return found


def bind(graph: Graph, tensors: Mapping[Ref, Tensor], outputs: Mapping[str, Tensor] | None = None) -> Binding:
    """Bind `tensors` to values by reference, and `outputs` by the names of the graph's outputs.

    Raises `MalformedError` for a value or an output that the graph does not have, for a tensor of another spec, for a
    constant of another digest, and if one value is bound to two different tensors.
    """
    specs = graph.specs()
    for ref, tensor in tensors.items():
        _check(ref, tensor, specs)
    check_constants([each for each in graph.constants if each.name in tensors], tensors)
    values, named = dict(tensors), {each.name: each.value for each in graph.outputs}
    for name, tensor in (outputs or {}).items():
        if name not in named:
            raise MalformedError(f"the graph has no output {ascii(name)[:80]}")
        _check(named[name], tensor, specs)
        held = values.setdefault(named[name], tensor)
        if bytes(held.data) != bytes(tensor.data):
            raise MalformedError(f"output {name} is bound to another tensor than its value {named[name]}")
    return Binding(graph, values)


def _check(ref: Ref, tensor: Tensor, specs: Mapping[Ref, TensorSpec]) -> None:
    if ref not in specs:
        raise MalformedError(f"the graph has no value {ascii(ref)[:80]}")
    if TensorSpec.of(tensor) != specs[ref]:
        raise MalformedError(f"{ref} is {specs[ref]}, and bound to {TensorSpec.of(tensor)}")


def _connected(nodes: list[Node]) -> list[set[int]]:
    """Groups of nodes that read each other's results, directly or through others, in the order of their first nodes."""
    group_of: dict[int, set[int]] = {node.number: {node.number} for node in nodes}
    givers = {ref: node.number for node in nodes for ref in node.outputs if ref is not None}
    for node in nodes:
        for ref in node.refs:
            mine, theirs = group_of[node.number], group_of.get(givers.get(ref, -1))
            if theirs is not None and theirs is not mine:
                small, large = sorted((mine, theirs), key=len)
                large |= small
                group_of |= dict.fromkeys(small, large)
    return list({id(group): group for group in group_of.values()}.values())

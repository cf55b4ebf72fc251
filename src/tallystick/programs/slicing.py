"""Slices, which are graphs themselves, and the data bound to the values of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import check_constants
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Ref, Role

# Nodes keep their numbers. A value that the slice reads but does not compute becomes an input with the role `cut`,
# named by its reference; inputs and constants of the whole graph keep their names. The outputs of a slice are the
# outputs of the whole graph that it computes and, named by their references, its values that nodes outside read or that
# no node reads.


def subgraph(graph: Graph, numbers: Iterable[int]) -> Graph:
    """The slice of the nodes with these numbers; raises `UsageError` for numbers that the graph does not have."""
    wanted = set(numbers)
    _require_nodes(graph, wanted)
    nodes = tuple(node for node in graph.nodes if node.number in wanted)
    return _sliced(graph, nodes, _boundary(graph, nodes))


def ancestors(graph: Graph, numbers: Iterable[int]) -> set[int]:
    """The numbers of these nodes and of all nodes that they depend on."""
    wanted = set(numbers)
    _require_nodes(graph, wanted)
    givers = givers_of(graph)
    for node in reversed(graph.nodes):
        if node.number in wanted:
            wanted |= {givers[ref] for ref in node.refs if ref in givers}
    return wanted


def descendants(graph: Graph, numbers: Iterable[int]) -> set[int]:
    """The numbers of these nodes and of all nodes that depend on them."""
    reached = set(numbers)
    _require_nodes(graph, reached)
    givers = givers_of(graph)
    for node in graph.nodes:
        if any(givers.get(ref) in reached for ref in node.refs):
            reached.add(node.number)
    return reached


def between(graph: Graph, sources: Iterable[int], targets: Iterable[int]) -> Graph:
    """The slice of all paths from the nodes `sources` to the nodes `targets`, both ends included.

    Raises `UsageError` if there is no such path.
    """
    numbers = descendants(graph, sources) & ancestors(graph, targets)
    if not numbers:
        raise UsageError("no path leads from the first operators to the second")
    return subgraph(graph, numbers)


def verification_slice(graph: Graph, given: Collection[Ref], wanted: Collection[Ref]) -> Graph:
    """The slice that computes the values `wanted` from the values `given`.

    Its only outputs are `wanted`, and its form is verification. Other inputs and constants of the whole graph that it
    needs are inputs and constants of the slice. A node that gives a value in `given` and also another value that is
    needed is part of the slice. Raises `UsageError` for a value that the graph does not have, and if there is nothing
    to compute.
    """
    specs = graph.specs()
    for ref in (*given, *wanted):
        if ref not in specs:
            raise UsageError(f"the graph has no value {ref[:80]}")
    nodes, _ = _behind(graph, set(), wanted, given)
    if not nodes:
        raise UsageError("nothing has to be computed between these cuts")
    cut = _sliced(graph, nodes, tuple(Output(ref, ref) for ref in dict.fromkeys(wanted)))
    return replace(cut, form=GraphForm.VERIFICATION)


def givers_of(graph: Graph) -> dict[Ref, int]:
    """The number of the node that gives each value."""
    return {ref: node.number for node in graph.nodes for ref in node.outputs if ref is not None}


def readers_of(graph: Graph) -> dict[Ref, list[int]]:
    """The numbers of the nodes that read each value, without repetition, in order."""
    readers: dict[Ref, list[int]] = {}
    for node in graph.nodes:
        for ref in dict.fromkeys(node.refs):
            readers.setdefault(ref, []).append(node.number)
    return readers


def _behind(
    graph: Graph, numbers: Collection[int], wanted: Collection[Ref], given: Collection[Ref]
) -> tuple[tuple[Node, ...], set[Ref]]:
    """The nodes with these numbers and those that compute `wanted` or what they read; and all values needed for it."""
    needed, kept = {ref for ref in wanted if ref not in given}, list[Node]()
    for node in reversed(graph.nodes):
        if node.number in numbers or needed.intersection(filter(None, node.outputs)):
            kept.append(node)
            needed |= {ref for ref in node.refs if ref not in given}
    return tuple(reversed(kept)), needed


def _sliced(graph: Graph, nodes: tuple[Node, ...], outputs: tuple[Output, ...]) -> Graph:
    produced = {ref for node in nodes for ref in node.outputs if ref is not None}
    read = dict.fromkeys(ref for node in nodes for ref in node.refs if ref not in produced)
    read |= dict.fromkeys(output.value for output in outputs if output.value not in produced)
    sources = {each.name for each in graph.sources}
    specs = graph.specs()
    cuts = tuple(Input(ref, Role.CUT, specs[ref]) for ref in read if ref not in sources)
    return replace(
        graph,
        inputs=(*(each for each in graph.inputs if each.name in read), *cuts),
        constants=tuple(each for each in graph.constants if each.name in read),
        nodes=nodes,
        outputs=outputs,
    )


def _boundary(graph: Graph, nodes: Collection[Node]) -> tuple[Output, ...]:
    """The outputs of a slice: those of the graph, then values that are read outside the slice or by no node."""
    numbers, readers = {node.number for node in nodes}, readers_of(graph)
    produced = {ref: None for node in nodes for ref in node.outputs if ref is not None}
    named = tuple(output for output in graph.outputs if output.value in produced)
    has_name = {output.value for output in named}
    leaving = (ref for ref in produced if _leaves(readers.get(ref, ()), numbers, ref in has_name))
    return (*named, *(output for ref in leaving if (output := Output(ref, ref)) not in named))


def _leaves(readers: Collection[int], inside: Collection[int], has_name: bool) -> bool:
    return any(number not in inside for number in readers) or (not readers and not has_name)


def _require_nodes(graph: Graph, numbers: Iterable[int]) -> None:
    lacking = sorted(set(numbers) - {node.number for node in graph.nodes})
    if lacking:
        raise UsageError(f"the graph has no node {lacking[0]}")


# Data bound to the values of a graph: what is bound, what a replay still needs, and what can be replayed.


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
        numbers = set(wanted)
        _require_nodes(self.graph, numbers)
        _, needed = _behind(self.graph, numbers, (), self.values.keys())
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

    def _computable(self) -> set[int]:
        known, computable = set(self.values), set[int]()
        for node in self.graph.nodes:
            if known.issuperset(node.refs):
                computable.add(node.number)
                known.update(filter(None, node.outputs))
        return computable


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

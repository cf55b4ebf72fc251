"""Slices: parts of a graph that are graphs themselves and can be executed alone.

Nodes keep their numbers. A value that the slice reads but does not compute becomes an input with the role `cut`, named
by its reference; inputs and constants of the whole graph keep their names. The outputs of a slice are the outputs of
the whole graph that it computes and, named by their references, its values that nodes outside read or that no node
reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tallystick.errors import UsageError
from tallystick.graphs.graph import Graph, GraphForm, Input, Node, Output, Ref, Role


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
    found = set(numbers)
    _require_nodes(graph, found)
    givers = givers_of(graph)
    for node in graph.nodes:
        if any(givers.get(ref) in found for ref in node.refs):
            found.add(node.number)
    return found


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
    _require_values(graph, (*given, *wanted))
    needed, kept = {ref for ref in wanted if ref not in given}, set[int]()
    for node in reversed(graph.nodes):
        if needed.intersection(filter(None, node.outputs)):
            kept.add(node.number)
            needed |= {ref for ref in node.refs if ref not in given}
    nodes = tuple(node for node in graph.nodes if node.number in kept)
    if not nodes:
        raise UsageError("nothing has to be computed between these cuts")
    cut = _sliced(graph, nodes, tuple(Output(ref, ref) for ref in dict.fromkeys(wanted)))
    return replace(cut, form=GraphForm.VERIFICATION)


def givers_of(graph: Graph) -> dict[Ref, int]:
    """The number of the node that gives each value."""
    return {ref: node.number for node in graph.nodes for ref in node.outputs if ref is not None}


def readers_of(graph: Graph) -> dict[Ref, list[int]]:
    """The numbers of the nodes that read each value, without repetition, in order."""
    found: dict[Ref, list[int]] = {}
    for node in graph.nodes:
        for ref in dict.fromkeys(node.refs):
            found.setdefault(ref, []).append(node.number)
    return found


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


def _require_values(graph: Graph, refs: Iterable[Ref]) -> None:
    specs = graph.specs()
    for ref in refs:
        if ref not in specs:
            raise UsageError(f"the graph has no value {ref[:80]}")

"""A graph, one of its nodes, and the difference of two graphs: as lines of text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.commitments.encoding import Json
    from tallystick.graphs.difference import Change, Diff
    from tallystick.graphs.graph import Graph
    from tallystick.graphs.inspection import Inspection
    from tallystick.graphs.modules import NamedNodes


def graph_lines(graph: Graph, named: NamedNodes) -> Iterator[str]:
    """Inputs, constants, nodes with the modules they came from, and outputs."""
    yield from (f"{each.role:<9} {each.name}: {each.spec}" for each in graph.inputs)
    yield from (f"constant  {each.name}: {each.spec}" for each in graph.constants)
    for node in graph.nodes:
        results = ", ".join("none" if spec is None else str(spec) for spec in node.results)
        yield f"n{node.number:<8} {node.operator}({', '.join(node.refs)}): {results}{named.place(node.number)}"
    yield from (f"output    {each.name}: {each.value}" for each in graph.outputs)


def graph_json(graph: Graph, named: NamedNodes) -> Json:
    """The graph's document, its root, and the modules of its nodes by number."""
    from tallystick.commitments.encoding import parse
    from tallystick.graphs.encoding import graph_bytes
    from tallystick.graphs.root import graph_root

    modules: dict[str, Json] = {str(number): path for number, path in named.paths.items()}
    return {"graph": parse(graph_bytes(graph), "graph"), "modules": modules, "root": str(graph_root(graph))}


def node_facts(found: Inspection, number: int, named: NamedNodes) -> dict[str, Json]:
    """One node's record, its module, its cost, and how many nodes it depends on and serves."""
    from tallystick.graphs.encoding import node_json
    from tallystick.graphs.slicing import ancestors, descendants

    if number not in found.nodes:
        raise UsageError(f"the graph has no node {number}")
    cost = found.costs[number]
    return {
        **node_json(found.nodes[number]),
        "bytes_moved": cost.bytes_moved,
        "depends_on": len(ancestors(found.graph, [number])) - 1,
        "depth": found.depths[number],
        "flops": cost.flops,
        "meaning": found.find(found.nodes[number].operator).meaning,
        "module": named.paths.get(number),
        "read_by": list(found.read_by(number)),
        "reads": list(found.reads(number)),
        "serves": len(descendants(found.graph, [number])) - 1,
    }


def diff_lines(found: Diff, before: tuple[Graph, NamedNodes], after: tuple[Graph, NamedNodes]) -> Iterator[str]:
    """What differs outside the nodes, then nodes removed, added and changed, each with its module."""
    mine, theirs = ({node.number: node.operator for node in graph.nodes} for graph, _ in (before, after))
    yield from (f"! {line}" for line in found.header)
    yield from (f"- n{number} {mine[number]}{before[1].place(number)}" for number in found.removed)
    yield from (f"+ n{number} {theirs[number]}{after[1].place(number)}" for number in found.added)
    for each in found.changed:
        place = before[1].place(each.number) or after[1].place(each.other)
        yield f"~ n{each.number} -> n{each.other} {mine[each.number]}{place}: {_changes(each)}"
    yield f"{found.same} nodes are the same"


def diff_json(found: Diff, before: NamedNodes, after: NamedNodes) -> Json:
    """The difference as JSON, with the modules of the nodes that it names."""
    document = found.to_json()
    assert isinstance(document, dict)  # as `Diff` writes it
    first = {*found.removed, *(each.number for each in found.changed)}
    second = {*found.added, *(each.other for each in found.changed)}
    return {**document, "modules": [_named(before, first), _named(after, second)]}


def plain(value: Json) -> str:
    """A JSON value in a line of text."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={plain(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return "none" if value is None else str(value)


def _changes(change: Change) -> str:
    return ", ".join(f"{name} {plain(mine)} -> {plain(theirs)}" for name, (mine, theirs) in change.values.items())


def _named(named: NamedNodes, numbers: set[int]) -> Json:
    return {str(number): named.paths[number] for number in sorted(numbers) if number in named.paths}

"""Finds nodes of a graph by what a profiler says of an operator: its name and the shapes of its operands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tallystick.graphs.graph import Graph, Node
from tallystick.graphs.inspection import Inspection
from tallystick.graphs.slicing import givers_of
from tallystick.graphs.update import before_update, update_nodes
from tallystick.recorders.timelines.call_work import CallWork, NodeRooms, room_of, work_of

KEY_CHARACTERS_MAX: Final = 1 << 14
Key: TypeAlias = str
"""The name of an operator and the shapes of its operands that have any, as text."""


@dataclass(frozen=True)
class GraphNames:
    """The nodes of a step: those by key that compute the loss and its gradients, and those of the optimizer."""

    body: dict[Key, tuple[int, ...]]
    update: tuple[int, ...]
    reads: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The nodes that each node reads, in an order of execution."""
    rooms: NodeRooms = field(default_factory=NodeRooms)

    @classmethod
    def of(cls, graph: Graph) -> GraphNames:
        """The names in a graph. Without outputs `gradients.…`, as in a graph of inference, all nodes are its body."""
        before = before_update(graph)
        body: defaultdict[Key, list[int]] = defaultdict(list)
        specs, givers = graph.specs(), givers_of(graph)
        for node in graph.nodes:
            if node.number in before:
                body[_key_of(node, [list(specs[ref].shape) for ref in node.refs])].append(node.number)
        return cls(
            {key: tuple(numbers) for key, numbers in body.items()},
            update_nodes(graph),
            {node.number: tuple(givers[ref] for ref in node.refs if ref in givers) for node in graph.nodes},
            _rooms(graph),
        )


def work(name: str, dims: Any) -> CallWork:
    """The work of a call that a profiler reports with these shapes."""
    return work_of(name, list(_shapes(dims if isinstance(dims, list) else [])))


def key(name: str, dims: Any) -> Key:
    """The key of an operator that a profiler names, such as `aten::mul_`; in place or not is one operator."""
    shapes = list(_shapes(dims if isinstance(dims, list) else []))
    base = name.removesuffix("_") if not name.endswith("__") else name
    return f"{base} {shapes}"[:KEY_CHARACTERS_MAX]


def _key_of(node: Node, shapes: list[list[int]]) -> Key:
    space, _, rest = node.operator.partition(".")
    return key(f"{space}::{rest.rpartition('.')[0] or rest}", shapes)


def _shapes(dims: list[Any]) -> Iterable[Any]:
    """The shapes with at least one dimension; those of lists of tensors one by one."""
    for each in dims:
        if isinstance(each, list) and each:
            yield from (inner for inner in each if inner) if isinstance(each[0], list) else [each]


def _rooms(graph: Graph) -> NodeRooms:
    inspection = Inspection(graph)
    specs, costs = inspection.specs, inspection.costs
    used = {node.number: {*node.refs, *(ref for ref in node.outputs if ref)} for node in graph.nodes}
    rooms = {n.number: room_of(n, [specs[ref] for ref in used[n.number]], costs[n.number].flops) for n in graph.nodes}
    return NodeRooms(rooms)

"""What each node of a graph needs: the nodes before it, operations and bytes; and whether it must be seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tallystick.graphs.graph import Graph, Node
from tallystick.graphs.inspection import Inspection
from tallystick.graphs.update import update_nodes
from tallystick.tensors.spec import TensorSpec

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


@dataclass(frozen=True)
class GraphWork:
    """The work of all nodes of a graph, by number, in an order of execution."""

    graph: Graph

    @cached_property
    def nodes(self) -> dict[int, NodeWork]:
        """The work of each node."""
        inspection = Inspection(self.graph)
        needed, update = _needed(inspection), {*update_nodes(self.graph)}
        return {
            node.number: _work(inspection, node, node.number in needed, node.number in update)
            for node in self.graph.nodes
        }


def _work(inspection: Inspection, node: Node, is_needed: bool, is_update: bool) -> NodeWork:
    cost = inspection.costs[node.number]
    values = [inspection.specs[ref] for ref in {*node.refs, *(ref for ref in node.outputs if ref)}]
    largest = max(values, key=lambda spec: spec.nbytes, default=None)
    whole = sum(spec.nbytes for spec in values)
    goes_through = cost.flops >= max((spec.size for spec in values), default=0)  # not so where rows are looked up
    return NodeWork(
        node,
        inspection.reads(node.number),
        cost.flops,
        whole if goes_through else 0,
        whole,
        "" if largest is None else largest.dtype,
        is_needed and cost.bytes_moved > 0 and node.operator.split(".")[1] not in IN_PASSING and not _is_scalar(values),
        is_update,
    )


def _is_scalar(values: Iterable[TensorSpec]) -> bool:
    """Whether a node only handles single numbers, such as a learning rate: a processor may do that in passing."""
    return all(spec.size <= 1 for spec in values)


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

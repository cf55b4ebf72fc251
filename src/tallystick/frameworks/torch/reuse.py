"""Decides which operators may write their result over their first operand without changing any result.

Three conditions must hold: nothing reads the operand's memory afterwards, no other value shares that memory, and the
result has the operand's dtype and shape. Values that might share memory are in one group. Only operators that are known
to allocate their result start a new group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from tallystick.graphs.graph import Graph, Node, Ref

IN_PLACE: Final = {
    f"aten.{stem}.{overload}": f"aten.{stem}_.{overload}"
    for stem, overloads in {
        "add": ("Tensor", "Scalar"),
        "addcdiv": ("default",),
        "addcmul": ("default",),
        "clamp": ("default",),
        "div": ("Tensor", "Scalar"),
        "lerp": ("Scalar",),
        "masked_fill": ("Scalar", "Tensor"),
        "mul": ("Tensor", "Scalar"),
        "neg": ("default",),
        "sub": ("Tensor", "Scalar"),
    }.items()
    for overload in overloads
} | {"aten.mul.Scalar": "aten.mul_.Tensor"}  # `mul_.Scalar` rounds the number to the 16 bits of its operand first
"""Elementwise operators and the overloads that write over their first operand; both compute the same bits."""

ALLOCATING: Final = frozenset(IN_PLACE) | {
    "aten._log_softmax.default",
    "aten._log_softmax_backward_data.default",
    "aten._softmax.default",
    "aten._softmax_backward_data.default",
    "aten._to_copy.default",
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.cat.default",
    "aten.clone.default",
    "aten.convolution_backward.default",
    "aten.embedding_dense_backward.default",
    "aten.exp.default",
    "aten.gelu_backward.default",
    "aten.mm.default",
    "aten.native_batch_norm_backward.default",
    "aten.native_group_norm_backward.default",
    "aten.native_layer_norm_backward.default",
    "aten.pow.Tensor_Scalar",
    "aten.reciprocal.default",
    "aten.rsqrt.default",
    "aten.silu_backward.default",
    "aten.slice_backward.default",
    "aten.sqrt.default",
    "aten.sum.dim_IntList",
    "aten.threshold_backward.default",
}
"""Operators whose results have newly allocated memory."""


def in_place_nodes(graph: Graph, consumed: Collection[Ref] = ()) -> frozenset[int]:
    """The numbers of the nodes that may write over their first operand.

    `consumed` are inputs whose tensors may be overwritten; each must have memory that nothing else uses.
    """
    groups, specs = _groups(graph), graph.specs()
    last_read = _last_reads(graph, groups)
    owned = set(consumed) | {ref for node in graph.nodes if node.operator in ALLOCATING for ref in node.outputs if ref}
    chosen: set[int] = set()
    for node in graph.nodes:
        first = node.refs[0] if node.operator in IN_PLACE else None
        if first is None or first not in owned or node.results[0] != specs[first]:
            continue
        if last_read[groups[first]] == node.number and _is_alone(node, first, groups):
            chosen.add(node.number)
    return frozenset(chosen)


def _is_alone(node: Node, first: Ref, groups: dict[Ref, int]) -> bool:
    """Whether no other operand shares memory with the operand that is overwritten."""
    return all(groups[ref] != groups[first] or ref == first for ref in node.refs)


def _groups(graph: Graph) -> dict[Ref, int]:
    """A group number for each value; values that might share memory have the same number."""
    parent: dict[Ref, Ref] = {name: name for name in graph.specs()}

    def root(ref: Ref) -> Ref:
        while parent[ref] != ref:
            parent[ref] = parent[parent[ref]]
            ref = parent[ref]
        return ref

    for one, other in _perhaps_shared(graph):
        parent[root(one)] = root(other)
    numbers = {name: index for index, name in enumerate(parent)}
    return {ref: numbers[root(ref)] for ref in parent}


def _perhaps_shared(graph: Graph) -> Iterator[tuple[Ref, Ref]]:
    for node in graph.nodes:
        if node.operator not in ALLOCATING:
            yield from ((result, ref) for result in node.outputs if result for ref in node.refs)


def _last_reads(graph: Graph, groups: dict[Ref, int]) -> dict[int, int]:
    """The number of the last node that reads a value of each group; outputs are read after all nodes."""
    found: dict[int, int] = {}
    for node in graph.nodes:
        found |= {groups[ref]: node.number for ref in node.refs}
    end = graph.nodes[-1].number + 1 if graph.nodes else 0
    return found | {groups[output.value]: end for output in graph.outputs}

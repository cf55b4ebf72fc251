"""The work of a call by its name and shapes, and whether it fits into what the nodes around it need.

A span is named by the prover. A product of matrices in it belongs to its nodes only as far as these multiply as much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, NamedTuple

from tallystick.graphs.graph import Node
from tallystick.tensors.spec import TensorSpec

WORK_MAX: Final = 1 << 62
PRODUCTS: Final = 1.25
"""How many times the products of its definition a node may take: frameworks pad."""
ELEMENTS: Final = 16
"""How many times the elements of its operands and results: frameworks take one operator apart into several passes."""
ELEMENTS_ALWAYS: Final = 1 << 12
LINEAR: Final = "linear"
PRODUCT: Final = "product"
PLAIN: Final = frozenset({"aten", "prims", "autograd", "torch", "mkl", "mkldnn", "onednn", "c10d", "profiler"})
"""The namespaces of PyTorch's own operators; of another one nothing is known."""
_MARKED: Final = re.compile(r"^(_foreach_|_fused_|_)|(_backward\w*|_forward\w*|_)$")
_MATRICES: Final = frozenset({"matmul", "mv", "dot", "vdot", "inner", "mkl_linear", "linear", "linear_pointwise"})
_FAMILIES: Final = (
    ("convolution", re.compile(r"conv(?!er)")),
    ("attention", re.compile(r"attention")),
    ("recurrent", re.compile(r"lstm|(^|_)(gru|rnn)(_|$)")),
    (
        "decomposition",
        re.compile(r"linalg_(?!vector_norm|norm|cross|multi_dot|matmul|vecdot)|cholesky|pinverse|matrix_exp"),
    ),
    ("decomposition", re.compile(r"(^|_)(lu|svd|qr|eig\w*|inverse|solve|geqrf|orgqr|ormqr|det|slogdet)(_|$)")),
    ("transform", re.compile(r"fft|stft")),
    ("distances", re.compile(r"cdist|pdist|bilinear$|trilinear$")),
)


class CallWork(NamedTuple):
    """What a call costs: of what kind it is, and its multiplications and additions, or its elements."""

    kind: str
    amount: int


@dataclass
class Room:
    """What nodes, or a call, still leave to the calls inside."""

    products: int = 0
    elements: int = 0
    families: frozenset[str] = frozenset()

    def admits(self, work: CallWork) -> bool:
        """Whether a call of this work fits; its work is taken away then."""
        if work.kind == PRODUCT:
            is_inside = work.amount <= self.products
            self.products -= work.amount if is_inside else 0
        elif work.kind == LINEAR:
            is_inside = work.amount <= self.elements
            self.elements -= work.amount if is_inside else 0
        else:
            is_inside = work.kind in self.families
        return is_inside


@dataclass(frozen=True)
class NodeRooms:
    """The room of every node of a graph."""

    rooms: dict[int, Room] = field(default_factory=dict)

    def of(self, nodes: Iterable[int]) -> Room | None:
        """The room of these nodes together; `None` where one of them is not known, and nothing can be said."""
        found = [self.rooms.get(number) for number in nodes]
        known = [each for each in found if each is not None]
        if len(known) < len(found) or not known:
            return None
        families = frozenset[str]().union(*(each.families for each in known))
        return Room(sum(each.products for each in known), sum(each.elements for each in known), families)


def room_of(node: Node, specs: Sequence[TensorSpec], flops: int) -> Room:
    """The room of a node whose operands and results are `specs`."""
    elements = sum(spec.size for spec in specs)
    space, _, rest = node.operator.partition(".")
    kind = _kind_of(f"{space}::{rest.rpartition('.')[0] or rest}")
    products = int(PRODUCTS * flops) if flops > elements else 0
    return Room(products, ELEMENTS * elements + ELEMENTS_ALWAYS, frozenset({kind} - {LINEAR, PRODUCT}))


def work_of(name: str, shapes: Sequence[Sequence[int]]) -> CallWork:
    """The work of a call by what a profiler says of it."""
    kind, counted = _kind_of(name), [[size for size in shape if type(size) is int and size >= 0] for shape in shapes]
    elements = sum(map(prod, counted))
    if kind == PRODUCT and (amount := _products(_base(name), counted)) > 2 * elements:
        return CallWork(kind, min(WORK_MAX, amount))
    if kind in (PRODUCT, LINEAR):  # a matrix and a vector: each element is read once
        return CallWork(LINEAR, min(WORK_MAX, max(elements, _broadcast(counted) if kind == LINEAR else 0)))
    return CallWork(kind, 0)


def _base(name: str) -> str:
    base = name.rpartition("::")[2]
    while (shorter := _MARKED.sub("", base)) != base:
        base = shorter
    return base


def _kind_of(name: str) -> str:
    """Linear in its elements, a product of matrices, or a family of operators whose cost the shapes do not tell."""
    space, is_named, _ = name.rpartition("::")
    if is_named and space.split("::")[0] not in PLAIN and not space.endswith("evaluate_function"):
        return name
    base = _base(name) if is_named else name
    if not is_named:
        return LINEAR if not re.match(r"triton_(?!poi|per|red)", base) else name
    if base in _MATRICES or base.endswith("mm"):
        return PRODUCT
    return next((family for family, pattern in _FAMILIES if pattern.search(base)), LINEAR)


def _products(base: str, shapes: list[list[int]]) -> int:
    """The multiplications and additions of a product of matrices: `[…, m, k]` times `[…, k, n]`."""
    matrices = [shape for shape in shapes if shape]
    if base.startswith(("add", "badd")) and len(matrices) > 2:
        matrices = matrices[1:]
    if len(matrices) < 2:
        return sum(map(prod, shapes))
    first, second = matrices[:2]
    if "linear" in base:
        return 2 * prod(first) * (second[0] if len(second) > 1 else 1)
    columns = second[-1] if len(second) > 1 else 1
    rows = first[-2] if len(first) > 1 else 1
    return 2 * max(prod(first) * columns, prod(second) * rows)


def _broadcast(shapes: list[list[int]]) -> int:
    """The elements of the result where a call broadcasts its operands, 0 where they do not fit."""
    if not shapes or len(shapes) > 4:
        return 0
    rank = max(map(len, shapes))
    sizes = list(zip(*([1] * (rank - len(shape)) + shape for shape in shapes), strict=True))
    fits = all(len({*each} - {1}) <= 1 for each in sizes)
    return prod(max(each) for each in sizes) if fits else 0

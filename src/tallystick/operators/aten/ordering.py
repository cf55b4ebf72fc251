"""Sorted elements, triangles of matrices, and differences of neighbours."""

from __future__ import annotations

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, Comparison, V
from tallystick.operators.aten.arguments import axis_of, lifted
from tallystick.operators.aten.joining import cat, part
from tallystick.operators.definition import Exactness, Family

FAMILY = Family()


@FAMILY.operator(
    "aten.sort.default", "Tensor self, int dim=-1, bool descending=False", "sorted, and from where", Exactness.MOVES
)
def sort(a: Algebra[V], self: V, dim: int, descending: bool) -> tuple[V, V]:
    """Values and I64 indices; of equal values, first the first."""
    values, indices = a.sort(lifted(a, self), axis_of(self, dim), descending)
    return a.reshape(values, self.shape), a.reshape(indices, self.shape)


@FAMILY.operator(
    "aten.sort.stable",
    "Tensor self, *, bool? stable, int dim=-1, bool descending=False",
    "sorted, and from where",
    Exactness.MOVES,
)
def sort_stable(a: Algebra[V], self: V, stable: bool | None, dim: int, descending: bool) -> tuple[V, V]:
    """Stable in any case."""
    return sort(a, self, dim, descending)


@FAMILY.operator(
    "aten.argsort.default", "Tensor self, int dim=-1, bool descending=False", "from where, sorted", Exactness.MOVES
)
def argsort(a: Algebra[V], self: V, dim: int, descending: bool) -> V:
    """I64."""
    return sort(a, self, dim, descending)[1]


@FAMILY.operator(
    "aten.argsort.stable",
    "Tensor self, *, bool stable, int dim=-1, bool descending=False",
    "from where, sorted",
    Exactness.MOVES,
)
def argsort_stable(a: Algebra[V], self: V, stable: bool, dim: int, descending: bool) -> V:
    """Stable in any case."""
    return argsort(a, self, dim, descending)


@FAMILY.operator(
    "aten.topk.default",
    "Tensor self, int k, int dim=-1, bool largest=True, bool sorted=True",
    "the k greatest, and from where",
    Exactness.MOVES,
)
def topk(a: Algebra[V], self: V, k: int, dim: int, largest: bool, sorted: bool) -> tuple[V, V]:
    """Sorted in any case; values and I64 indices."""
    axis, x = axis_of(self, dim), lifted(a, self)
    if not 0 <= k <= x.shape[axis]:
        raise MalformedError(f"{k} of {x.shape[axis]} elements")
    values, indices = (part(a, each, axis, 0, k) for each in a.sort(x, axis, largest))
    return (values, indices) if self.shape or k != 1 else (a.reshape(values, ()), a.reshape(indices, ()))


@FAMILY.operator("aten.tril.default", "Tensor self, int diagonal=0", "0 above a diagonal", Exactness.MOVES)
def tril(a: Algebra[V], self: V, diagonal: int) -> V:
    """What is kept: column ≤ row + diagonal."""
    return _triangle(a, self, diagonal, "le")


@FAMILY.operator("aten.triu.default", "Tensor self, int diagonal=0", "0 below a diagonal", Exactness.MOVES)
def triu(a: Algebra[V], self: V, diagonal: int) -> V:
    """What is kept: column ≥ row + diagonal."""
    return _triangle(a, self, diagonal, "ge")


@FAMILY.operator(
    "aten.diff.default",
    "Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None",
    "differences of neighbours, n times",
    Exactness.COMPOSITE,
)
def diff(a: Algebra[V], self: V, n: int, dim: int, prepend: V | None, append: V | None) -> V:
    """BOOL: whether neighbours differ."""
    if n < 0 or not self.shape:
        raise MalformedError(f"{n} differences along a tensor with {len(self.shape)} axes")
    parts = [x for x in (prepend, self, append) if x is not None]
    x, axis = cat(a, parts, dim) if len(parts) > 1 else self, axis_of(self, dim)
    for _ in range(min(n, x.shape[axis])):
        x = _neighbours(a, x, axis)
    return x


def _triangle(a: Algebra[V], x: V, diagonal: int, how: Comparison) -> V:
    if len(x.shape) < 2:
        raise MalformedError(f"a matrix has 2 axes, not {len(x.shape)}")
    sides = x.shape[-2:]
    limit = a.add(a.iota((sides[0], 1), 0, "I64"), diagonal)
    return a.where(a.compare(a.iota((1, sides[1]), 1, "I64"), limit, how), x, 0)


def _neighbours(a: Algebra[V], x: V, axis: int) -> V:
    side = x.shape[axis]
    after, before = part(a, x, axis, min(1, side), side), part(a, x, axis, 0, max(side - 1, 0))
    if x.dtype == "BOOL":
        return a.logical_xor(after, before)
    return a.cast(a.sub(a.wide(after), a.wide(before)), x.dtype)

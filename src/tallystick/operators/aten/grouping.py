"""Rows that belong to groups: counted by `histc`, multiplied by one matrix per group in `_grouped_mm`.

Mixtures of experts are trained with them: rows are sorted by expert, `histc` counts them, and each expert multiplies
its own rows.
"""

from __future__ import annotations

import math
from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, V
from tallystick.operators.aten.contraction import check_rank, widened
from tallystick.operators.definition import Exactness, Family, Scalar
from tallystick.operators.shapes import INTEGERS

FAMILY: Final = Family()
COUNTED: Final = frozenset({"F32", "F64", *INTEGERS})


@FAMILY.operator(
    "aten.histc.default",
    "Tensor self, int bins=100, Scalar min=0, Scalar max=0",
    "how many elements lie in each of equal bins from min to max",
    Exactness.COMPOSITE,
)
def histc(a: Algebra[V], self: V, bins: int, min: Scalar, max: Scalar) -> V:
    """In the dtype of `self`; the last bin includes `max`, and what lies outside, or is NaN, is not counted.

    min < max: equal ones stand for the extremes of the data. The bin is (x − min)·bins / (max − min), cut to a whole
    number.
    """
    if self.dtype not in COUNTED or bins < 1 or not min < max:
        raise MalformedError(
            f"{bins} bins from {min!r:.40} to {max!r:.40} of {self.dtype}: the limits have to be stated"
        )
    x = a.reshape(self, (math.prod(self.shape), 1))
    inside = a.logical_and(a.compare(x, min, "ge"), a.compare(x, max, "le"))
    bin_of = _bins(a, a.where(inside, x, min), bins, min, max)
    hit = a.logical_and(inside, a.compare(bin_of, a.iota((1, bins), 1, "I64"), "eq"))
    return a.cast(a.sum(a.cast(hit, "I64"), (0,)), self.dtype)


@FAMILY.operator(
    "aten._grouped_mm.default",
    "Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, dtype? out_dtype=None",
    "one matrix product per group of rows, or of summed places",
    Exactness.COMPOSITE,
)
def grouped_mm(a: Algebra[V], self: V, mat2: V, offs: V | None, bias: V | None, out_dtype: str | None) -> V:
    """Group i ends before `offs[i]`, I32, and begins where the group before it ends.

    Shapes [n,k] and [g,k,m] give [n,m]: groups of rows. Shapes [n,k] and [k,m] give [g,n,m]: groups of the k places
    that are summed. Kernels leave rows of no group as they find them, so these are NaN and have no bound.
    """
    if offs is None or offs.dtype != "I32" or bias is not None or out_dtype not in (None, self.dtype):
        raise MalformedError("groups end at I32 offsets, without a bias, and keep their dtype")
    check_rank(self, 2)
    check_rank(offs, 1)
    x, y = widened(a, self, mat2)
    if len(mat2.shape) == 2:
        return a.cast(_sums(a, x, y, offs), self.dtype)
    check_rank(mat2, 3)
    if mat2.shape[0] != offs.shape[0]:
        raise MalformedError(f"{offs.shape[0]} groups for {mat2.shape[0]} matrices")
    return a.cast(_rows(a, x, y, offs), self.dtype)


def _bins(a: Algebra[V], x: V, bins: int, low: Scalar, high: Scalar) -> V:
    """The bin of each element between the limits: integers divide as integers."""
    if x.dtype in INTEGERS:
        if int(low) != low or int(high) != high:
            raise MalformedError(f"integers between {low!r:.40} and {high!r:.40}")
        wide = a.mul(a.sub(a.cast(x, "I64"), int(low)), bins)
        return a.minimum(a.floor_divide(wide, int(high) - int(low)), bins - 1)
    quotient = a.div(a.mul(a.sub(x, low), bins), a.sub(a.full((), high, x.dtype), low))
    return a.cast(a.minimum(quotient, bins - 1), "I64")


def _rows(a: Algebra[V], x: V, matrices: V, offs: V) -> V:
    """Each row times the matrix of its group."""
    count, (_, inner, columns) = x.shape[0], matrices.shape
    result = a.full((count, columns), math.nan, x.dtype)
    for group in range(matrices.shape[0]):
        matrix = a.reshape(_part(a, matrices, group), (inner, columns))
        product = a.dot(x, matrix, ((1,), (0,)))
        result = a.where(a.reshape(_members(a, offs, group, count), (count, 1)), product, result)
    return result


def _sums(a: Algebra[V], x: V, y: V, offs: V) -> V:
    """One product per group, over the places of the group."""
    check_rank(y, 2)
    places, products = x.shape[1], []
    for group in range(offs.shape[0]):
        inside = _members(a, offs, group, places)
        left = a.where(a.reshape(inside, (1, places)), x, 0)
        right = a.where(a.reshape(inside, (places, 1)), y, 0)
        products.append(a.reshape(a.dot(left, right, ((1,), (0,))), (1, x.shape[0], y.shape[1])))
    return a.concat(products, 0) if products else a.full((0, x.shape[0], y.shape[1]), 0, x.dtype)


def _members(a: Algebra[V], offs: V, group: int, count: int) -> V:
    """BOOL of `count` places: whether each is of the group."""
    places = a.iota((count,), 0, "I32")
    before_end = a.compare(places, _part(a, offs, group), "lt")
    return before_end if group == 0 else a.logical_and(before_end, a.compare(places, _part(a, offs, group - 1), "ge"))


def _part(a: Algebra[V], x: V, index: int) -> V:
    """Entry `index` of the first axis, which stays with side 1."""
    rest = len(x.shape) - 1
    return a.slice(x, (index, *(0,) * rest), (index + 1, *x.shape[1:]), (1,) * (rest + 1))

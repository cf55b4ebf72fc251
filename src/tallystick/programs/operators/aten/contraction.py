"""Products of matrices and vectors, also one matrix per group of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Number, Typed, V
from tallystick.programs.operators.aten.arguments import part
from tallystick.programs.operators.definition import Dtype, Family, Scalar
from tallystick.programs.operators.types import INTEGERS, broadcast_shapes

# Kernels multiply and accumulate in F32 for F16 and BF16 and round once at the end. They may begin their sum with the
# added term and add to it in any order, so it has its share of the additions: see `summand`.

FAMILY: Final = Family("aten")


@FAMILY.accumulates("mm.default", "matrix product")
def mm(a: Algebra[V], self: V, mat2: V) -> V:
    """Shapes [n,k] and [k,m] give [n,m]; dtypes are equal."""
    return a.cast(_ranked(a, 2, 2, *widened(a, self, mat2)), self.dtype)


@FAMILY.accumulates("bmm.default", "one matrix product per index")
def bmm(a: Algebra[V], self: V, mat2: V) -> V:
    """Shapes [b,n,k] and [b,k,m] give [b,n,m]; the first axis does not broadcast."""
    return a.cast(_batched(a, *widened(a, self, mat2)), self.dtype)


@FAMILY.accumulates("mv.default", "matrix times vector")
def mv(a: Algebra[V], self: V, vec: V) -> V:
    """Shapes [n,k] and [k] give [n]."""
    return a.cast(_ranked(a, 2, 1, *widened(a, self, vec)), self.dtype)


@FAMILY.accumulates("dot.default", "inner product")
def dot(a: Algebra[V], self: V, tensor: V) -> V:
    """Two vectors of equal length give a 0-dimensional tensor."""
    return a.cast(_ranked(a, 1, 1, *widened(a, self, tensor)), self.dtype)


@FAMILY.accumulates("vdot.default", "inner product")
def vdot(a: Algebra[V], self: V, other: V) -> V:
    """As `dot`, for real numbers."""
    return dot(a, self, other)


@FAMILY.accumulates("addmm.default", "beta·self + alpha·(mat1·mat2)")
def addmm(a: Algebra[V], self: V, mat1: V, mat2: V, beta: Scalar = 1, alpha: Scalar = 1) -> V:
    """`self` broadcasts to the product; where beta is 0 it is not read."""
    return _plus_product(a, self, mat1, mat2, beta, alpha, lambda x, y: _ranked(a, 2, 2, x, y))


@FAMILY.accumulates("addmv.default", "beta·self + alpha·(mat·vec)")
def addmv(a: Algebra[V], self: V, mat: V, vec: V, beta: Scalar = 1, alpha: Scalar = 1) -> V:
    """`self` broadcasts to the product; where beta is 0 it is not read."""
    return _plus_product(a, self, mat, vec, beta, alpha, lambda x, y: _ranked(a, 2, 1, x, y))


@FAMILY.accumulates("baddbmm.default", "beta·self + alpha·(batch1·batch2), one matrix product per index")
def baddbmm(a: Algebra[V], self: V, batch1: V, batch2: V, beta: Scalar = 1, alpha: Scalar = 1) -> V:
    """`self` broadcasts to the products; where beta is 0 it is not read."""
    return _plus_product(a, self, batch1, batch2, beta, alpha, lambda x, y: _batched(a, x, y))


@FAMILY.accumulates("matmul.default", "matrix product over broadcast axes")
def matmul(a: Algebra[V], self: V, other: V) -> V:
    """As NumPy's `matmul`: vectors lose their axis, axes before the last two broadcast."""
    return a.cast(product(a, *widened(a, self, other)), self.dtype)


@FAMILY.accumulates("linear.default", "x·Wᵀ + b")
def linear(a: Algebra[V], input: V, weight: V, bias: V | None = None) -> V:
    """Shapes [...,k] and [m,k] give [...,m]; [...,k] and [k] give [...]."""
    if not input.shape or len(weight.shape) not in (1, 2):
        raise MalformedError(f"a linear layer with {len(weight.shape)} axes of weights, {len(input.shape)} of inputs")
    axes = ((len(input.shape) - 1,), (len(weight.shape) - 1,))
    x, w, *addends = widened(a, input, weight, *optional(bias))
    result = a.dot(x, w, axes)
    for addend in addends:
        result = _added(a, addend, result, 1, weight.shape[-1])
    return a.cast(result, input.dtype)


def product(a: Algebra[V], x: V, y: V) -> V:
    """`matmul` of operands of one dtype, without rounding to a narrower one."""
    if not x.shape or not y.shape:
        raise MalformedError("a 0-dimensional tensor has no matrix product")
    last, summed = len(x.shape) - 1, max(len(y.shape) - 2, 0)
    if len(y.shape) <= 2 or len(x.shape) == 1:
        return a.dot(x, y, ((last,), (summed,)))
    batch = broadcast_shapes([x.shape[:-2], y.shape[:-2]])
    x, y = a.broadcast(x, batch + x.shape[-2:]), a.broadcast(y, batch + y.shape[-2:])
    front = tuple(range(len(batch)))
    return a.dot(x, y, ((len(batch) + 1,), (len(batch),)), (front, front))


def summand(a: Algebra[V], x: V, additions: int) -> V:
    """`x` itself, with the error of a term that goes through `additions` additions of a longer sum.

    The factor is 1 + 0 + … + 0. Written as `add(x, sum)` alone, `x` would have the error of one addition, while a
    kernel may begin with `x` and add every other term to it.
    """
    if x.dtype not in FLOATS:
        return x
    one = a.pad(a.full((1,), 1, x.dtype), 0, (0,), (additions,), (0,))
    return a.mul(x, a.sum(one, (0,)))


def widened(a: Algebra[V], *tensors: V) -> list[V]:
    """`tensors` in the type in which kernels accumulate. Raises `MalformedError` unless they have one dtype."""
    if len({tensor.dtype for tensor in tensors}) != 1:
        raise MalformedError(f"dtypes {', '.join(tensor.dtype for tensor in tensors)} where one is needed")
    return [a.wide(tensor) for tensor in tensors]


def optional(x: V | None) -> tuple[V, ...]:
    """The value, if there is one."""
    return () if x is None else (x,)


def check_rank(x: Typed, rank: int) -> None:
    """Raise `MalformedError` unless `x` has `rank` axes."""
    if len(x.shape) != rank:
        raise MalformedError(f"a tensor with {len(x.shape)} axes where {rank} are needed")


def _batched(a: Algebra[V], x: V, y: V) -> V:
    check_rank(x, 3)
    check_rank(y, 3)
    return a.dot(x, y, ((2,), (1,)), ((0,), (0,)))


def _ranked(a: Algebra[V], x_rank: int, y_rank: int, x: V, y: V) -> V:
    check_rank(x, x_rank)
    check_rank(y, y_rank)
    return product(a, x, y)


def _plus_product(
    a: Algebra[V], addend: V, x: V, y: V, beta: Number, factor: Number, multiply: Callable[[V, V], V]
) -> V:
    """Kernels scale the sum or either factor; the bound covers an overflow or underflow in each of these orders."""
    dtype, (addend, x, y) = x.dtype, widened(a, addend, x, y)
    if factor == 1:
        result = multiply(x, y)
    else:
        on_the_left, on_the_right = multiply(a.mul(x, factor), y), multiply(x, a.mul(y, factor))
        result = a.maximum(a.maximum(on_the_left, on_the_right), a.mul(multiply(x, y), factor))
    return a.cast(_added(a, addend, result, beta, x.shape[-1]), dtype)


def _added(a: Algebra[V], x: V, result: V, beta: Number, terms: int) -> V:
    scaled = x if beta == 1 else a.mul(x, beta)
    broadcast = a.broadcast(summand(a, scaled, terms), result.shape)
    return result if beta == 0 else a.add(broadcast, result)


# Rows that belong to groups: counted by `histc`, multiplied by one matrix per group in `_grouped_mm`.
#
# Mixtures of experts are trained with them: rows are sorted by expert, `histc` counts them, and each expert multiplies
# its own rows.

COUNTED: Final = frozenset({"F32", "F64", *INTEGERS})


@FAMILY.composite("histc.default", "how many elements lie in each of equal bins from min to max")
def histc(a: Algebra[V], self: V, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> V:
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


@FAMILY.composite("_grouped_mm.default", "one matrix product per group of rows, or of summed places")
def grouped_mm(
    a: Algebra[V], self: V, mat2: V, offs: V | None = None, bias: V | None = None, out_dtype: Dtype | None = None
) -> V:
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
        matrix = a.reshape(part(a, matrices, 0, group, group + 1), (inner, columns))
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
    before_end = a.compare(places, part(a, offs, 0, group, group + 1), "lt")
    return (
        before_end
        if group == 0
        else a.logical_and(before_end, a.compare(places, part(a, offs, 0, group - 1, group), "ge"))
    )

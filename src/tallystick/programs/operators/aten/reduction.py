"""Many elements to one: sums, means, extremes, variances, norms.

16-bit floats are accumulated in F32, whatever the order. A mean is the sum times 1/n: kernels divide or multiply.
"""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Axes, Comparison, V
from tallystick.programs.operators.aten.arguments import axes_of, axis_of, divided, dropped, flat, float_dtype, lifted
from tallystick.programs.operators.definition import Dtype, Family, Ints, Scalar

FAMILY = Family("aten")


# ---- sums


@FAMILY.accumulates("sum.default", "Σ self")
def sum_all(a: Algebra[V], self: V, dtype: Dtype | None = None) -> V:
    return sum_over(a, self, None, dtype=dtype)


@FAMILY.accumulates("sum.dim_IntList", "Σ self along dim")
def sum_over(a: Algebra[V], self: V, dim: Ints | None, keepdim: bool = False, dtype: Dtype | None = None) -> V:
    """Integers and BOOL are summed as I64, where `dtype` does not say otherwise."""
    into = dtype or _summed_dtype(self)
    return a.cast(a.sum(a.wide(a.cast(self, into)), axes_of(self, dim), keepdim), into)


@FAMILY.accumulates("mean.default", "Σ self / n")
def mean_all(a: Algebra[V], self: V, dtype: Dtype | None = None) -> V:
    return mean(a, self, None, dtype=dtype)


@FAMILY.accumulates("mean.dim", "Σ self / n along dim")
def mean(a: Algebra[V], self: V, dim: Ints | None, keepdim: bool = False, dtype: Dtype | None = None) -> V:
    """Floats only; NaN over no elements."""
    into = dtype or self.dtype
    return a.cast(mean_of(a, a.wide(a.cast(self, into)), axes_of(self, dim), keepdim), into)


@FAMILY.accumulates("prod.default", "Π self")
def prod_all(a: Algebra[V], self: V, dtype: Dtype | None = None) -> V:
    return a.prod(a.cast(self, dtype or _summed_dtype(self)), axes_of(self, None))


@FAMILY.accumulates("prod.dim_int", "Π self along dim")
def prod(a: Algebra[V], self: V, dim: int, keepdim: bool = False, dtype: Dtype | None = None) -> V:
    """Integers and BOOL are multiplied as I64, where `dtype` does not say otherwise; 16-bit floats in 16 bits."""
    return a.prod(a.cast(self, dtype or _summed_dtype(self)), axes_of(self, (dim,)), keepdim)


@FAMILY.accumulates("cumsum.default", "running sums along dim")
def cumsum(a: Algebra[V], self: V, dim: int, dtype: Dtype | None = None) -> V:
    """Integers and BOOL are summed as I64, where `dtype` does not say otherwise."""
    into, axis = dtype or _summed_dtype(self), axis_of(self, dim)
    running = a.cumsum(a.wide(a.cast(lifted(a, self), into)), axis)
    return a.reshape(a.cast(running, into), self.shape)


@FAMILY.exact("count_nonzero.default", "elements that are not 0")
def count_nonzero(a: Algebra[V], self: V, dim: int | None = None) -> V:
    """I64; NaN is not 0."""
    return a.sum(a.cast(a.cast(self, "BOOL"), "I64"), axes_of(self, None if dim is None else (dim,)))


@FAMILY.exact("count_nonzero.dim_IntList", "elements that are not 0")
def count_nonzero_over(a: Algebra[V], self: V, dim: Ints) -> V:
    """I64; NaN is not 0."""
    return a.sum(a.cast(a.cast(self, "BOOL"), "I64"), axes_of(self, dim))


# ---- extremes: NaN where there is one, and of equal ones the first


def _add_extreme(name: str, largest: str, opposite: bool) -> None:
    def extreme(a: Algebra[V], x: V, axes: Axes, keep: bool = False) -> V:
        result: V = getattr(a, name)(x, axes, keep)
        return result

    @FAMILY.exact(f"{name}.default", f"the {largest} element")
    def of_all(a: Algebra[V], self: V) -> V:
        return extreme(a, self, axes_of(self, None))

    @FAMILY.exact(f"a{name}.default", f"the {largest} along dim")
    def along_axes(a: Algebra[V], self: V, dim: Ints = (), keepdim: bool = False) -> V:
        return extreme(a, self, axes_of(self, dim), keepdim)

    @FAMILY.exact(f"arg{name}.default", f"where the {largest} is")
    def place(a: Algebra[V], self: V, dim: int | None = None, keepdim: bool = False) -> V:
        """In row-major order where no axis is named; negated floats and inverted integers stand in the other order."""
        return _place_of_largest(a, _opposite(a, self) if opposite else self, dim, keepdim)

    @FAMILY.exact(f"{name}.dim", f"the {largest} along dim and where")
    def with_place(a: Algebra[V], self: V, dim: int, keepdim: bool = False) -> tuple[V, V]:
        return extreme(a, self, axes_of(self, (dim,)), keepdim), place(a, self, dim, keepdim)


_add_extreme("max", "largest", opposite=False)
_add_extreme("min", "smallest", opposite=True)


@FAMILY.exact("aminmax.default", "both extremes")
def aminmax(a: Algebra[V], self: V, dim: int | None = None, keepdim: bool = False) -> tuple[V, V]:
    axes = axes_of(self, None if dim is None else (dim,))
    return a.min(self, axes, keepdim), a.max(self, axes, keepdim)


def _add_quantifier(name: str, meaning: str, counted: Callable[[Algebra[Any], Any], Any], how: Comparison) -> None:
    """BOOL, and U8 for U8: whether as many elements are `counted` as `how` says, compared with 0."""

    def judged(a: Algebra[V], x: V, dim: Ints | None, keep: bool) -> V:
        count: V = a.sum(a.cast(counted(a, a.cast(x, "BOOL")), "I64"), axes_of(x, dim), keep)
        verdict = a.compare(count, 0, how)
        return a.cast(verdict, "U8") if x.dtype == "U8" else verdict

    @FAMILY.exact(f"{name}.default", meaning)
    def of_all(a: Algebra[V], self: V) -> V:
        return judged(a, self, None, False)

    @FAMILY.exact(f"{name}.dim", f"{name} along dim")
    def along_axis(a: Algebra[V], self: V, dim: int, keepdim: bool = False) -> V:
        return judged(a, self, (dim,), keepdim)

    @FAMILY.exact(f"{name}.dims", f"{name} along dim")
    def along_axes(a: Algebra[V], self: V, dim: Ints | None = None, keepdim: bool = False) -> V:
        return judged(a, self, dim, keepdim)


_add_quantifier("any", "whether an element is not 0", lambda a, held: held, "ne")  # false for no elements
_add_quantifier("all", "whether no element is 0", lambda a, held: a.logical_not(held), "eq")  # true for no elements


# ---- variances


@FAMILY.composite("var.default", "variance")
def var_all(a: Algebra[V], self: V, unbiased: bool = True) -> V:
    return var_mean(a, self, None, int(unbiased))[0]


@FAMILY.composite("var.dim", "variance along dim")
def var_unbiased(a: Algebra[V], self: V, dim: Ints | None, unbiased: bool = True, keepdim: bool = False) -> V:
    """Divided by n − 1, or by n if not `unbiased`."""
    return var_mean(a, self, dim, int(unbiased), keepdim)[0]


@FAMILY.composite("var.correction", "Σ (self − mean)² / (n − correction)")
def var(a: Algebra[V], self: V, dim: Ints | None = None, correction: Scalar | None = None, keepdim: bool = False) -> V:
    """In two passes; kernels also update a running mean (Welford 1962), which errs by no more to first order."""
    return var_mean(a, self, dim, correction, keepdim)[0]


@FAMILY.composite("var_mean.correction", "variance and mean")
def var_mean(
    a: Algebra[V], self: V, dim: Ints | None = None, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[V, V]:
    """See `var`; a correction of 1 where there is none."""
    axes, x = axes_of(self, dim), a.wide(self)
    center = mean_of(a, x, axes, True)
    spread = _variance(a, x, center, axes, 1 if correction is None else correction, keepdim)
    return a.cast(spread, self.dtype), a.cast(center if keepdim else dropped(a, center, axes), self.dtype)


@FAMILY.composite("std.correction", "square root of the variance")
def std(a: Algebra[V], self: V, dim: Ints | None = None, correction: Scalar | None = None, keepdim: bool = False) -> V:
    axes, x = axes_of(self, dim), a.wide(self)
    spread = _variance(a, x, mean_of(a, x, axes, True), axes, 1 if correction is None else correction, keepdim)
    return a.cast(a.sqrt(spread), self.dtype)


# ---- norms


@FAMILY.composite("linalg_vector_norm.default", "(Σ |self| ^ ord) ^ (1/ord)")
def vector_norm(
    a: Algebra[V], self: V, ord: Scalar = 2, dim: Ints | None = None, keepdim: bool = False, dtype: Dtype | None = None
) -> V:
    """`ord` 0 counts what is not 0; infinite orders are the largest and the smallest magnitude."""
    into = dtype or self.dtype
    return a.cast(_norm_along(a, a.wide(a.cast(self, into)), float(ord), axes_of(self, dim), keepdim), into)


@FAMILY.composite("norm.Scalar", "(Σ |self| ^ p) ^ (1/p)")
def norm(a: Algebra[V], self: V, p: Scalar = 2) -> V:
    return vector_norm(a, self, p)


@FAMILY.composite("norm.ScalarOpt_dim", "(Σ |self| ^ p) ^ (1/p) along dim")
def norm_over(a: Algebra[V], self: V, p: Scalar | None, dim: Ints, keepdim: bool = False) -> V:
    return vector_norm(a, self, 2 if p is None else p, dim, keepdim)


@FAMILY.composite("logsumexp.default", "log Σ e ^ self along dim")
def logsumexp(a: Algebra[V], self: V, dim: Ints, keepdim: bool = False) -> V:
    """Shifted by the maximum, unless that is infinite; −∞ over no elements. Kernels round every step to 16 bits."""
    axes, x = axes_of(self, dim), a.cast(self, float_dtype(self.dtype))
    if any(x.shape[axis] == 0 for axis in axes):
        return a.log(a.sum(x, axes, keepdim))
    largest = a.max(x, axes, True)
    shift = a.where(a.is_finite(largest), largest, 0)
    total = a.cast(a.sum(a.wide(a.exp(a.sub(x, shift))), axes, keepdim), x.dtype)
    return a.add(a.log(total), shift if keepdim else dropped(a, shift, axes))


def mean_of(a: Algebra[V], x: V, axes: Axes, keep: bool) -> V:
    """The mean along `axes`, at the dtype of `x`; NaN over no elements."""
    return divided(a, a.sum(x, axes, keep), _count(x, axes))


def _variance(a: Algebra[V], x: V, center: V, axes: Axes, correction: Scalar, keep: bool) -> V:
    apart = a.sub(x, center)
    return divided(a, a.sum(a.mul(apart, apart), axes, keep), max(_count(x, axes) - correction, 0))


def _place_of_largest(a: Algebra[V], x: V, dim: int | None, keep: bool) -> V:
    if dim is not None:
        return a.argmax(lifted(a, x), axis_of(x, dim), keep) if x.shape else a.full((), 0, "I64")
    place = a.argmax(flat(a, x), 0)
    return a.reshape(place, (1,) * len(x.shape)) if keep else place


def _opposite(a: Algebra[V], x: V) -> V:
    return a.neg(x) if x.dtype in FLOATS else a.logical_not(x)


def _norm_along(a: Algebra[V], x: V, order: float, axes: Axes, keep: bool) -> V:
    if order == 2:
        return a.sqrt(a.sum(a.mul(x, x), axes, keep))
    if order == 0:
        return a.sum(a.cast(a.compare(x, 0, "ne"), x.dtype), axes, keep)
    size = a.abs(x)
    if math.isinf(order):
        return a.max(size, axes, keep) if order > 0 else a.min(size, axes, keep)
    if order == 1:
        return a.sum(size, axes, keep)
    return a.pow(a.sum(a.pow(size, order), axes, keep), a.div(1, a.full((), order, x.dtype)))


def _summed_dtype(x: V) -> str:
    return x.dtype if x.dtype in FLOATS else "I64"


def _count(x: V, axes: Axes) -> int:
    return math.prod(x.shape[axis] for axis in axes)

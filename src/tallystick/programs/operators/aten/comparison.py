"""Comparisons, logic, and choices between elements: all exact."""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

from typing import Any

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Comparison, V
from tallystick.programs.operators.aten.arguments import common_dtype
from tallystick.programs.operators.definition import Family, Scalar
from tallystick.programs.operators.precision import FORMATS

FAMILY = Family("aten")


def _add_comparison(how: Comparison, sign: str) -> None:
    @FAMILY.exact(f"{how}.Tensor {how}.Scalar", f"self {sign} other", other="Tensor Scalar")
    def compared(a: Algebra[V], self: V, other: V | Scalar) -> V:
        """At the dtype where both meet, to which numbers are rounded."""
        _, (x, y) = _at_common(a, self, other)
        return a.compare(x, y, how)


_add_comparison("eq", "=")
_add_comparison("ne", "≠")
_add_comparison("lt", "<")
_add_comparison("le", "≤")
_add_comparison("gt", ">")
_add_comparison("ge", "≥")


# ---- logic


def _add_logic(primitive: str) -> None:
    meaning = f"self {primitive} other"

    @FAMILY.exact(f"logical_{primitive}.default", meaning)
    def logical(a: Algebra[V], self: V, other: V) -> V:
        """Numbers hold where they are not 0."""
        result: V = getattr(a, f"logical_{primitive}")(a.cast(self, "BOOL"), a.cast(other, "BOOL"))
        return result

    @FAMILY.exact(
        f"bitwise_{primitive}.Tensor bitwise_{primitive}.Scalar __{primitive}__.Tensor __{primitive}__.Scalar",
        meaning,
        other="Tensor Scalar Tensor Scalar",
    )
    def bitwise(a: Algebra[V], self: V, other: V | Scalar) -> V:
        """Integers bit by bit, or BOOL."""
        dtype, (x, y) = _at_common(a, self, other)
        result: V = getattr(a, f"logical_{primitive}")(x, a.full((), y, dtype) if isinstance(y, int | float) else y)
        return result


for _primitive in ("and", "or", "xor"):
    _add_logic(_primitive)


@FAMILY.exact("logical_not.default", "not self")
def logical_not(a: Algebra[V], self: V) -> V:
    """Numbers hold where they are not 0."""
    return a.logical_not(a.cast(self, "BOOL"))


@FAMILY.exact("bitwise_not.default", "every bit inverted")
def bitwise_not(a: Algebra[V], self: V) -> V:
    return a.logical_not(self)


@FAMILY.exact("isnan.default", "self is NaN")
def isnan(a: Algebra[V], self: V) -> V:
    return a.compare(self, self, "ne")


@FAMILY.exact("isfinite.default", "self is neither infinite nor NaN")
def isfinite(a: Algebra[V], self: V) -> V:
    return a.is_finite(self) if self.dtype in FLOATS else a.full(self.shape, 1, "BOOL")


@FAMILY.exact("isinf.default", "self is infinite")
def isinf(a: Algebra[V], self: V) -> V:
    return a.logical_not(a.logical_or(isfinite(a, self), isnan(a, self)))


# ---- choices


@FAMILY.exact("where.self", "self where condition, else other", self="Tensor", other="Tensor")
@FAMILY.exact(
    "where.ScalarOther where.ScalarSelf where.Scalar",
    "as where.self",
    self="Tensor Scalar Scalar",
    other="Scalar Tensor Scalar",
)
def where(a: Algebra[V], condition: V, self: V | Scalar, other: V | Scalar) -> V:
    """At the dtype where both meet; two numbers give F32, I64 or BOOL."""
    dtype, (x, y) = _at_common(a, self, other)
    return a.where(condition, a.full((), x, dtype) if isinstance(x, int | float) else x, y)


@FAMILY.exact("masked_fill.Scalar", "value where mask, else self")
def masked_fill(a: Algebra[V], self: V, mask: V, value: Scalar) -> V:
    return a.where(mask, value, self)


@FAMILY.exact("masked_fill.Tensor", "value where mask, else self")
def masked_fill_tensor(a: Algebra[V], self: V, mask: V, value: V) -> V:
    """`value` is 0-dimensional, and rounded to the dtype of `self`."""
    if value.shape:
        raise MalformedError(f"filled with a tensor of {len(value.shape)} axes, not with one number")
    return a.where(mask, a.cast(value, self.dtype), self)


@FAMILY.exact("maximum.default max.other", "the larger")
def maximum(a: Algebra[V], self: V, other: V) -> V:
    _, (x, y) = _at_common(a, self, other)
    return a.maximum(x, y)


@FAMILY.exact("minimum.default min.other", "the smaller")
def minimum(a: Algebra[V], self: V, other: V) -> V:
    _, (x, y) = _at_common(a, self, other)
    return a.minimum(x, y)


_CLAMPED = "min(max(self, min), max)"


@FAMILY.exact("clamp.default clamp.Tensor", _CLAMPED, min="Scalar? Tensor?", max="Scalar? Tensor?")
def clamp(a: Algebra[V], self: V, min: V | Scalar | None = None, max: V | Scalar | None = None) -> V:
    """`max` where `min` exceeds it; NaN where any is."""
    if min is None and max is None:
        raise MalformedError("clamped to neither a minimum nor a maximum")
    bounds = [bound for bound in (min, max) if bound is not None]
    _, (x, *bounds) = _at_common(a, self, *bounds)
    if min is not None:
        x = a.maximum(x, bounds.pop(0))
    result: V = x if max is None else a.minimum(x, bounds.pop(0))
    return result


@FAMILY.exact("clamp_min.default clamp_min.Tensor", "max(self, min)", min="Scalar Tensor")
def clamp_min(a: Algebra[V], self: V, min: V | Scalar) -> V:
    return clamp(a, self, min, None)


@FAMILY.exact("clamp_max.default clamp_max.Tensor", "min(self, max)", max="Scalar Tensor")
def clamp_max(a: Algebra[V], self: V, max: V | Scalar) -> V:
    return clamp(a, self, None, max)


@FAMILY.exact("nan_to_num.default", "numbers in place of NaN and infinities")
def nan_to_num(
    a: Algebra[V], self: V, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> V:
    """0 for NaN and the largest floats for infinities, unless other numbers are given."""
    if self.dtype not in FLOATS:
        return self
    largest = FORMATS[self.dtype].largest
    x = a.where(isnan(a, self), 0.0 if nan is None else nan, self)
    x = a.where(a.compare(self, float("inf"), "eq"), largest if posinf is None else posinf, x)
    return a.where(a.compare(self, float("-inf"), "eq"), -largest if neginf is None else neginf, x)


def _at_common(a: Algebra[V], *operands: Any) -> tuple[str, list[Any]]:
    """Operands at the dtype where they meet, which holds the result; a number stays one."""
    dtype = common_dtype(*operands)
    return dtype, [x if isinstance(x, bool | int | float) else a.cast(x, dtype) for x in operands]

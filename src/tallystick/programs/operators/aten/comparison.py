"""Comparisons, logic, and choices between elements: all exact."""

from __future__ import annotations

from typing import Any

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, Comparison, V
from tallystick.programs.operators.aten.arguments import FLOATS, common_dtype
from tallystick.programs.operators.definition import Exactness, Family, Scalar

FAMILY = Family()
_COMPARISONS: tuple[tuple[Comparison, str], ...] = (
    ("eq", "="),
    ("ne", "≠"),
    ("lt", "<"),
    ("le", "≤"),
    ("gt", ">"),
    ("ge", "≥"),
)


def _add_comparison(how: Comparison, sign: str) -> None:
    @FAMILY.operator(f"aten.{how}.Tensor", "Tensor self, Tensor other", f"self {sign} other", Exactness.EXACT)
    @FAMILY.operator(f"aten.{how}.Scalar", "Tensor self, Scalar other", f"self {sign} other", Exactness.EXACT)
    def compared(a: Algebra[V], self: V, other: V | Scalar) -> V:
        """At the dtype where both meet, to which numbers are rounded."""
        _, (x, y) = _at_common(a, self, other)
        return a.compare(x, y, how)


for _how, _sign in _COMPARISONS:
    _add_comparison(_how, _sign)


# ---- logic


def _add_logic(primitive: str, meaning: str) -> None:
    @FAMILY.operator(f"aten.logical_{primitive}.default", "Tensor self, Tensor other", meaning, Exactness.EXACT)
    def logical(a: Algebra[V], self: V, other: V) -> V:
        """Numbers hold where they are not 0."""
        result: V = getattr(a, f"logical_{primitive}")(a.cast(self, "BOOL"), a.cast(other, "BOOL"))
        return result

    @FAMILY.operator(f"aten.bitwise_{primitive}.Tensor", "Tensor self, Tensor other", meaning, Exactness.EXACT)
    @FAMILY.operator(f"aten.bitwise_{primitive}.Scalar", "Tensor self, Scalar other", meaning, Exactness.EXACT)
    @FAMILY.operator(f"aten.__{primitive}__.Tensor", "Tensor self, Tensor other", meaning, Exactness.EXACT)
    @FAMILY.operator(f"aten.__{primitive}__.Scalar", "Tensor self, Scalar other", meaning, Exactness.EXACT)
    def bitwise(a: Algebra[V], self: V, other: V | Scalar) -> V:
        """Integers bit by bit, or BOOL."""
        dtype, (x, y) = _at_common(a, self, other)
        result: V = getattr(a, f"logical_{primitive}")(x, a.full((), y, dtype) if isinstance(y, int | float) else y)
        return result


for _primitive in ("and", "or", "xor"):
    _add_logic(_primitive, f"self {_primitive} other")


@FAMILY.operator("aten.logical_not.default", "Tensor self", "not self", Exactness.EXACT)
def logical_not(a: Algebra[V], self: V) -> V:
    """Numbers hold where they are not 0."""
    return a.logical_not(a.cast(self, "BOOL"))


@FAMILY.operator("aten.bitwise_not.default", "Tensor self", "every bit inverted", Exactness.EXACT)
def bitwise_not(a: Algebra[V], self: V) -> V:
    """Integers, or BOOL."""
    return a.logical_not(self)


@FAMILY.operator("aten.isnan.default", "Tensor self", "self is NaN", Exactness.EXACT)
def isnan(a: Algebra[V], self: V) -> V:
    """NaN alone differs from itself."""
    return a.compare(self, self, "ne")


@FAMILY.operator("aten.isfinite.default", "Tensor self", "self is neither infinite nor NaN", Exactness.EXACT)
def isfinite(a: Algebra[V], self: V) -> V:
    """Integers and BOOL always are."""
    return a.is_finite(self) if self.dtype in FLOATS else a.full(self.shape, 1, "BOOL")


@FAMILY.operator("aten.isinf.default", "Tensor self", "self is infinite", Exactness.EXACT)
def isinf(a: Algebra[V], self: V) -> V:
    """Integers and BOOL never are."""
    return a.logical_not(a.logical_or(isfinite(a, self), isnan(a, self)))


# ---- choices


@FAMILY.operator(
    "aten.where.self",
    "Tensor condition, Tensor self, Tensor other",
    "self where condition, else other",
    Exactness.EXACT,
)
@FAMILY.operator(
    "aten.where.ScalarOther", "Tensor condition, Tensor self, Scalar other", "as where.self", Exactness.EXACT
)
@FAMILY.operator(
    "aten.where.ScalarSelf", "Tensor condition, Scalar self, Tensor other", "as where.self", Exactness.EXACT
)
@FAMILY.operator("aten.where.Scalar", "Tensor condition, Scalar self, Scalar other", "as where.self", Exactness.EXACT)
def where(a: Algebra[V], condition: V, self: V | Scalar, other: V | Scalar) -> V:
    """At the dtype where both meet; two numbers give F32, I64 or BOOL."""
    dtype, (x, y) = _at_common(a, self, other)
    return a.where(condition, a.full((), x, dtype) if isinstance(x, int | float) else x, y)


@FAMILY.operator(
    "aten.masked_fill.Scalar", "Tensor self, Tensor mask, Scalar value", "value where mask, else self", Exactness.EXACT
)
def masked_fill(a: Algebra[V], self: V, mask: V, value: Scalar) -> V:
    """`value` is a constant of the dtype of `self`."""
    return a.where(mask, value, self)


@FAMILY.operator(
    "aten.masked_fill.Tensor", "Tensor self, Tensor mask, Tensor value", "value where mask, else self", Exactness.EXACT
)
def masked_fill_tensor(a: Algebra[V], self: V, mask: V, value: V) -> V:
    """`value` is 0-dimensional, and rounded to the dtype of `self`."""
    if value.shape:
        raise MalformedError(f"filled with a tensor of {len(value.shape)} axes, not with one number")
    return a.where(mask, a.cast(value, self.dtype), self)


@FAMILY.operator("aten.maximum.default", "Tensor self, Tensor other", "the larger", Exactness.EXACT)
@FAMILY.operator("aten.max.other", "Tensor self, Tensor other", "the larger", Exactness.EXACT)
def maximum(a: Algebra[V], self: V, other: V) -> V:
    """NaN where either is."""
    _, (x, y) = _at_common(a, self, other)
    return a.maximum(x, y)


@FAMILY.operator("aten.minimum.default", "Tensor self, Tensor other", "the smaller", Exactness.EXACT)
@FAMILY.operator("aten.min.other", "Tensor self, Tensor other", "the smaller", Exactness.EXACT)
def minimum(a: Algebra[V], self: V, other: V) -> V:
    """NaN where either is."""
    _, (x, y) = _at_common(a, self, other)
    return a.minimum(x, y)


_CLAMPED = "min(max(self, min), max)"


@FAMILY.operator("aten.clamp.default", "Tensor self, Scalar? min=None, Scalar? max=None", _CLAMPED, Exactness.EXACT)
@FAMILY.operator("aten.clamp.Tensor", "Tensor self, Tensor? min=None, Tensor? max=None", _CLAMPED, Exactness.EXACT)
def clamp(a: Algebra[V], self: V, min: V | Scalar | None, max: V | Scalar | None) -> V:
    """`max` where `min` exceeds it; NaN where any is."""
    return _clamp(a, self, min, max)


@FAMILY.operator("aten.clamp_min.default", "Tensor self, Scalar min", "max(self, min)", Exactness.EXACT)
@FAMILY.operator("aten.clamp_min.Tensor", "Tensor self, Tensor min", "max(self, min)", Exactness.EXACT)
def clamp_min(a: Algebra[V], self: V, min: V | Scalar) -> V:
    """NaN where either is."""
    return _clamp(a, self, min, None)


@FAMILY.operator("aten.clamp_max.default", "Tensor self, Scalar max", "min(self, max)", Exactness.EXACT)
@FAMILY.operator("aten.clamp_max.Tensor", "Tensor self, Tensor max", "min(self, max)", Exactness.EXACT)
def clamp_max(a: Algebra[V], self: V, max: V | Scalar) -> V:
    """NaN where either is."""
    return _clamp(a, self, None, max)


@FAMILY.operator(
    "aten.nan_to_num.default",
    "Tensor self, float? nan=None, float? posinf=None, float? neginf=None",
    "numbers in place of NaN and infinities",
    Exactness.EXACT,
)
def nan_to_num(a: Algebra[V], self: V, nan: float | None, posinf: float | None, neginf: float | None) -> V:
    """0 for NaN and the largest floats for infinities, unless other numbers are given."""
    if self.dtype not in FLOATS:
        return self
    largest = _LARGEST[self.dtype]
    x = a.where(isnan(a, self), 0.0 if nan is None else nan, self)
    x = a.where(a.compare(self, float("inf"), "eq"), largest if posinf is None else posinf, x)
    return a.where(a.compare(self, float("-inf"), "eq"), -largest if neginf is None else neginf, x)


_LARGEST = {
    "F16": 65504.0,
    "BF16": (2 - 2.0**-7) * 2.0**127,
    "F32": (2 - 2.0**-23) * 2.0**127,
    "F64": (2 - 2.0**-52) * 2.0**1023,
}


def _clamp(a: Algebra[V], x: V, least: V | Scalar | None, most: V | Scalar | None) -> V:
    if least is None and most is None:
        raise MalformedError("clamped to neither a minimum nor a maximum")
    bounds = [bound for bound in (least, most) if bound is not None]
    _, (found, *bounds) = _at_common(a, x, *bounds)
    if least is not None:
        found = a.maximum(found, bounds.pop(0))
    result: V = found if most is None else a.minimum(found, bounds.pop(0))
    return result


def _at_common(a: Algebra[V], *operands: Any) -> tuple[str, list[Any]]:
    """Operands at the dtype where they meet, which holds the result; a number stays one."""
    dtype = common_dtype(*operands)
    return dtype, [x if isinstance(x, bool | int | float) else a.cast(x, dtype) for x in operands]

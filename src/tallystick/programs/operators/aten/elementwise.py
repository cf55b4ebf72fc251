"""Arithmetic and functions of one element at a time, also those with three operands that optimizers use."""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.aten.arguments import (
    brought,
    common_dtype,
    divided,
    float_dtype,
    met,
    real,
    stored,
    stored_number,
    wide_dtype,
)
from tallystick.programs.operators.definition import Definition, Exactness, Family, Scalar

FAMILY = Family("aten")


# ---- arithmetic


@FAMILY.rounds("add.Tensor add.Scalar", "self + alpha · other", other="Tensor Scalar")
def add(a: Algebra[V], self: V, other: V | Scalar, alpha: Scalar = 1) -> V:
    """Kernels round the product, or contract it with the sum; BOOL: logical or."""
    dtype, (x, y) = _summands(a, self, other)
    if dtype == "BOOL":
        return a.maximum(x, _times(a, y, alpha, dtype))
    return a.cast(a.add(x, _times(a, y, alpha, dtype)), dtype)


@FAMILY.rounds("sub.Tensor sub.Scalar", "self − alpha · other", other="Tensor Scalar")
def sub(a: Algebra[V], self: V, other: V | Scalar, alpha: Scalar = 1) -> V:
    dtype, (x, y) = _summands(a, self, other)
    return a.cast(a.sub(x, _times(a, y, alpha, dtype)), dtype)


@FAMILY.rounds("rsub.Tensor rsub.Scalar", "other − alpha · self", other="Tensor Scalar")
def rsub(a: Algebra[V], self: V, other: V | Scalar, alpha: Scalar = 1) -> V:
    dtype, (x, y) = _summands(a, self, other)
    return a.cast(a.sub(y, _times(a, x, alpha, dtype)), dtype)


@FAMILY.rounds("mul.Tensor mul.Scalar", "self · other", other="Tensor Scalar")
def mul(a: Algebra[V], self: V, other: V | Scalar) -> V:
    dtype, (x, y) = met(a, self, other)
    if dtype == "BOOL":
        return a.minimum(x, y)
    return a.cast(a.mul(x, y), dtype)


@FAMILY.rounds("div.Tensor div.Scalar", "self / other", other="Tensor Scalar")
def div(a: Algebra[V], self: V, other: V | Scalar) -> V:
    """Integers become F32; by one number for all elements, some kernels multiply by its inverse."""
    dtype, (x, y) = met(a, self, other, floats=True)
    one_number = isinstance(y, int | float) or (x.shape and not y.shape)
    return a.cast(divided(a, x, y) if one_number else a.div(x, y), dtype)


@FAMILY.rounds("reciprocal.default", "1 / self")
def reciprocal(a: Algebra[V], self: V) -> V:
    dtype, x = real(a, self)
    return a.cast(a.div(1, x), dtype)


@FAMILY.composite("div.Tensor_mode div.Scalar_mode", "self / other, whole", other="Tensor Scalar")
def div_mode(a: Algebra[V], self: V, other: V | Scalar, rounding_mode: str | None) -> V:
    """`floor` or `trunc` of the quotient, which for integers is computed exactly."""
    if rounding_mode is None:
        return div(a, self, other)
    if rounding_mode not in {"floor", "trunc"}:
        raise MalformedError(f"rounding mode {rounding_mode[:40]!r} is neither floor nor trunc")
    dtype, (x, y) = met(a, self, other)
    if dtype in FLOATS:
        quotient = stored(a, a.div(x, y), dtype)
        return a.cast(_floor_of(a, x, y, quotient) if rounding_mode == "floor" else a.trunc(quotient), dtype)
    return a.floor_divide(x, y) if rounding_mode == "floor" else _truncated_quotient(a, x, y)


@FAMILY.composite("floor_divide.default floor_divide.Scalar", "⌊self / other⌋", other="Tensor Scalar")
def floor_divide(a: Algebra[V], self: V, other: V | Scalar) -> V:
    return div_mode(a, self, other, "floor")


@FAMILY.composite(
    "remainder.Tensor remainder.Scalar", "self − ⌊self / other⌋ · other", self="Tensor", other="Tensor Scalar"
)
@FAMILY.composite("remainder.Scalar_Tensor", "as .Tensor", self="Scalar", other="Tensor")
def remainder(a: Algebra[V], self: V | Scalar, other: V | Scalar) -> V:
    """Has the sign of `other`; exact for integers. Kernels for floats reduce exactly (C's `fmod`)."""
    dtype, (x, y) = _tensors_met(a, self, other)
    if dtype not in FLOATS:
        return a.remainder(x, y)
    return a.cast(a.sub(x, a.mul(a.floor(a.div(x, y)), y)), dtype)


@FAMILY.composite("fmod.Tensor fmod.Scalar", "self − trunc(self / other) · other", other="Tensor Scalar")
def fmod(a: Algebra[V], self: V, other: V | Scalar) -> V:
    """Has the sign of `self`; exact for integers. Kernels for floats reduce exactly (C's `fmod`)."""
    dtype, (x, y) = _tensors_met(a, self, other)
    if dtype not in FLOATS:
        return a.sub(x, a.mul(_truncated_quotient(a, x, y), y))
    return a.cast(a.sub(x, a.mul(a.trunc(a.div(x, y)), y)), dtype)


@FAMILY.rounds("square.default", "self²")
def square(a: Algebra[V], self: V) -> V:
    x = a.wide(self)
    return a.cast(a.mul(x, x), self.dtype)


@FAMILY.library("pow.Tensor_Scalar", "self ^ exponent")
def pow_scalar(a: Algebra[V], self: V, exponent: Scalar) -> V:
    """1 for exponent 0, NaN included, and `self` for 1; small exponents are products and roots (`Algebra.pow`)."""
    dtype, (x, _) = met(a, self, exponent)
    if exponent == 0:
        return a.full(self.shape, 1, dtype)
    return a.cast(x if exponent == 1 else _power(a, x, exponent, dtype), dtype)


@FAMILY.library("pow.Scalar", "self ^ exponent")
def scalar_pow(a: Algebra[V], self: Scalar, exponent: V) -> V:
    """1 for base 1, NaN included."""
    dtype, (base, y) = met(a, self, exponent)
    return a.full(exponent.shape, 1, dtype) if self == 1 else a.cast(a.pow(stored_number(a, base, dtype), y), dtype)


@FAMILY.library("pow.Tensor_Tensor", "self ^ exponent")
def pow_tensor(a: Algebra[V], self: V, exponent: V) -> V:
    dtype, (x, y) = met(a, self, exponent)
    return a.cast(a.pow(x, y), dtype)


@FAMILY.library(
    "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self",
    "self · log other",
    self="Tensor Tensor Scalar",
    other="Tensor Scalar Tensor",
)
def xlogy(a: Algebra[V], self: V | Scalar, other: V | Scalar) -> V:
    """0 where `self` is 0, and NaN where `other` is."""
    return _times_logarithm(a, self, other, a.log)


@FAMILY.library("special_xlog1py.default", "self · log(1 + other)")
def xlog1py(a: Algebra[V], self: V, other: V) -> V:
    return _times_logarithm(a, self, other, a.log1p)


def _times_logarithm(a: Algebra[V], self: V | Scalar, other: V | Scalar, logarithm: Callable[[V], V]) -> V:
    dtype = float_dtype(common_dtype(self, other))
    x, y = (_as_tensor(a, brought(a, each, dtype), wide_dtype(dtype)) for each in (self, other))
    product = a.where(a.compare(x, 0, "eq"), 0, a.mul(x, logarithm(y)))
    return a.cast(a.where(a.compare(y, y, "ne"), math.nan, product), dtype)


# ---- functions


@FAMILY.exact("neg.default", "−self")
def neg(a: Algebra[V], self: V) -> V:
    return a.neg(self)


@FAMILY.exact("abs.default", "|self|")
def absolute(a: Algebra[V], self: V) -> V:
    return a.abs(self)


@FAMILY.exact("sign.default sgn.default", "−1, 0 or 1")
def sign(a: Algebra[V], self: V) -> V:
    """0 for NaN, as PyTorch's kernels have it."""
    if self.dtype not in FLOATS:
        return self if self.dtype == "BOOL" else a.sign(self)
    return a.where(a.compare(self, self, "eq"), a.sign(self), 0)


def _add_whole(name: str, meaning: str) -> None:
    @FAMILY.exact(f"{name}.default", meaning)
    def rounded(a: Algebra[V], self: V) -> V:
        function: Definition = getattr(a, name)
        return function(self) if self.dtype in FLOATS else self


def _add_function(name: str, meaning: str, exactness: Exactness = Exactness.LIBRARY) -> None:
    @FAMILY.operator(exactness, f"{name}.default", meaning)
    def computed(a: Algebra[V], self: V) -> V:
        dtype, x = real(a, self)
        function: Definition = getattr(a, name)
        return a.cast(function(x), dtype)


_add_whole("floor", "⌊self⌋")
_add_whole("ceil", "⌈self⌉")
_add_whole("trunc", "towards zero")
_add_whole("round", "to the nearest integer, ties to even")
_add_function("sqrt", "√self", Exactness.ROUNDS)
_add_function("exp", "e ^ self")
_add_function("expm1", "e ^ self − 1")
_add_function("log", "ln self")
_add_function("log1p", "ln (1 + self)")
_add_function("sin", "sin self")
_add_function("cos", "cos self")
_add_function("tanh", "tanh self")
_add_function("erf", "error function")
_add_function("sigmoid", "1 / (1 + e ^ −self)")


@FAMILY.library("rsqrt.default", "1 / √self")
def rsqrt(a: Algebra[V], self: V) -> V:
    """Integers become F32; in 16 bits some kernels round the root before they divide."""
    dtype, x = real(a, self)
    return a.cast(_power(a, x, -0.5, dtype) if dtype in {"F16", "BF16"} else a.rsqrt(x), dtype)


@FAMILY.library("exp2.default", "2 ^ self")
def exp2(a: Algebra[V], self: V) -> V:
    """Kernels have a function of its own, or e ^ (self · ln 2) with an extended product."""
    dtype, x = real(a, self)
    return a.cast(a.pow(2.0, x), dtype)


def _add_logarithm(base: int, meaning: str) -> None:
    @FAMILY.library(f"log{base}.default", meaning)
    def logarithm(a: Algebra[V], self: V) -> V:
        """A quotient of natural logarithms; kernels have a function of its own."""
        dtype, x = real(a, self)
        return a.cast(a.div(a.log(x), a.log(a.full((), base, x.dtype))), dtype)


_add_logarithm(2, "log₂ self")
_add_logarithm(10, "log₁₀ self")


@FAMILY.library("tan.default", "sin self / cos self")
def tan(a: Algebra[V], self: V) -> V:
    """A quotient; kernels have a function of its own."""
    dtype, x = real(a, self)
    return a.cast(a.div(a.sin(x), a.cos(x)), dtype)


def _floor_of(a: Algebra[V], x: V, y: V | Scalar, quotient: V) -> V:
    """⌊x / y⌋; as in Python −1 where x is finite, y infinite and the signs differ."""
    divisor = _as_tensor(a, y, x.dtype)
    differ = a.compare(a.mul(a.sign(x), a.sign(divisor)), 0, "lt")
    is_below = a.logical_and(a.compare(a.abs(divisor), math.inf, "eq"), a.logical_and(a.is_finite(x), differ))
    return a.where(is_below, -1, a.floor(quotient))


def _power(a: Algebra[V], x: V, exponent: Scalar, dtype: str) -> V:
    """In 16 bits, kernels of PyTorch round the exponent, and between the products and roots of a small one."""
    if dtype not in {"F16", "BF16"} or exponent in {2, 0.5, -1}:
        return a.pow(x, exponent)
    if exponent == -0.5:
        return a.div(1, stored(a, a.sqrt(x), dtype))
    if exponent not in {3, -2}:
        return a.pow(x, stored_number(a, exponent, dtype))
    product = stored(a, a.mul(x, x), dtype)
    return a.mul(product, x) if exponent == 3 else a.div(1, product)


def _summands(a: Algebra[V], x: V, y: V | Scalar) -> tuple[str, list[Any]]:
    dtype, operands = met(a, x, y)
    return dtype, [stored_number(a, each, dtype) for each in operands]


def _times(a: Algebra[V], x: V | Scalar, alpha: Scalar, dtype: str) -> V | Scalar:
    """In 16 bits, some kernels round `alpha` and the product."""
    if alpha == 1:
        return x
    tensor = _as_tensor(a, x, dtype)
    if dtype == "BOOL":
        return a.minimum(tensor, alpha)
    product = a.mul(tensor, stored_number(a, alpha, dtype))
    return stored(a, product, dtype) if dtype in FLOATS else product


def _tensors_met(a: Algebra[V], *operands: V | Scalar) -> tuple[str, list[Any]]:
    """As `met`, with tensors for numbers too."""
    dtype, promoted = met(a, *operands)
    return dtype, [_as_tensor(a, x, wide_dtype(dtype)) for x in promoted]


def _truncated_quotient(a: Algebra[V], x: V, y: V | Scalar) -> V:
    """⌊x / y⌋, plus 1 where that lies below a quotient that is negative and not whole."""
    below = a.compare(a.mul(a.floor_divide(x, y), y), x, "ne")
    signs_differ = a.logical_xor(a.compare(x, 0, "lt"), a.compare(_as_tensor(a, y, x.dtype), 0, "lt"))
    return a.add(a.floor_divide(x, y), a.cast(a.logical_and(below, signs_differ), x.dtype))


def _as_tensor(a: Algebra[V], x: V | Scalar, dtype: str) -> V:
    return a.full((), x, dtype) if isinstance(x, int | float) else x


# The arithmetic with three operands that optimizers use.


@FAMILY.composite("addcmul.default", "self + value · tensor1 · tensor2")
def addcmul(a: Algebra[V], self: V, tensor1: V, tensor2: V, value: Scalar = 1) -> V:
    """Kernels multiply in either order, and may contract the last product with the sum."""
    dtype, (x, y, z) = met(a, self, tensor1, tensor2)
    return a.cast(a.add(x, _scaled(a, a.mul(y, z), value)), dtype)


@FAMILY.composite("addcdiv.default", "self + value · tensor1 / tensor2")
def addcdiv(a: Algebra[V], self: V, tensor1: V, tensor2: V, value: Scalar = 1) -> V:
    """Floats only; kernels multiply before they divide, or after."""
    dtype, (x, y, z) = met(a, self, tensor1, tensor2)
    return a.cast(a.add(x, _scaled(a, a.div(y, z), value)), dtype)


@FAMILY.composite("lerp.Scalar", "self + weight · (end − self)")
def lerp(a: Algebra[V], self: V, end: V, weight: Scalar) -> V:
    """From the nearer of both ends: from `self` if |weight| < 1/2, else end − (end − self) · (1 − weight)."""
    x, y = a.wide(self), a.wide(end)
    number = a.full((), float(weight), x.dtype)
    nearer = _from_start if abs(weight) < 0.5 else _from_end
    return a.cast(nearer(a, x, y, number), self.dtype)


@FAMILY.composite("lerp.Tensor", "self + weight · (end − self)")
def lerp_tensor(a: Algebra[V], self: V, end: V, weight: V) -> V:
    x, y, w = (a.wide(each) for each in (self, end, weight))
    is_near = a.compare(a.abs(w), 0.5, "lt")
    return a.cast(a.where(is_near, _from_start(a, x, y, w), _from_end(a, x, y, w)), self.dtype)


def _from_start(a: Algebra[V], x: V, y: V, weight: V) -> V:
    return a.add(x, a.mul(weight, a.sub(y, x)))


def _from_end(a: Algebra[V], x: V, y: V, weight: V) -> V:
    return a.sub(y, a.mul(a.sub(y, x), a.sub(1, weight)))


def _scaled(a: Algebra[V], x: V, value: Scalar) -> Any:
    return x if value == 1 else a.mul(x, value)

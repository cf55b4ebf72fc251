"""Activation functions, softmax and its logarithm, and their gradients."""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.aten.arguments import (
    axis_of,
    constant,
    divided,
    lifted,
    met,
    narrowly_met,
    part,
    stored,
)
from tallystick.programs.operators.definition import Dtype, Family, Scalar

FAMILY = Family("aten")
_CUBIC = 0.044715  # Hendrycks & Gimpel 2016, §2


@FAMILY.exact("relu.default", "max(self, 0)")
def relu(a: Algebra[V], self: V) -> V:
    """NaN stays NaN; numbers only."""
    if self.dtype == "BOOL":
        raise MalformedError("relu of BOOL")
    return a.maximum(self, 0)


@FAMILY.exact("relu6.default", "min(max(self, 0), 6)")
def relu6(a: Algebra[V], self: V) -> V:
    """NaN stays NaN."""
    return a.minimum(a.maximum(self, 0), 6)


@FAMILY.exact("hardtanh.default", "self, clamped")
def hardtanh(a: Algebra[V], self: V, min_val: Scalar = -1, max_val: Scalar = 1) -> V:
    """NaN stays NaN."""
    return a.minimum(a.maximum(self, min_val), max_val)


@FAMILY.composite("hardtanh_backward.default", "grad_output strictly between the two bounds, else 0")
def hardtanh_backward(a: Algebra[V], grad_output: V, self: V, min_val: Scalar, max_val: Scalar) -> V:
    """0 at a bound. NaN where `self` is NaN; kernels differ there: some give the gradient, others 0."""
    outside = a.logical_or(a.compare(self, min_val, "le"), a.compare(self, max_val, "ge"))
    return a.where(outside, 0, a.where(a.compare(self, self, "eq"), grad_output, self))


@FAMILY.exact("threshold.default", "x > t ? x : v")
def threshold(a: Algebra[V], self: V, threshold: Scalar, value: Scalar) -> V:
    """`self` above the threshold, else `value`; NaN stays NaN."""
    return a.where(a.compare(self, threshold, "le"), value, self)


@FAMILY.exact("threshold_backward.default", "grad_output where self exceeds the threshold, else 0")
def threshold_backward(a: Algebra[V], grad_output: V, self: V, threshold: Scalar) -> V:
    """Where `self` is NaN, the gradient passes."""
    return a.where(a.compare(self, threshold, "le"), 0, grad_output)


@FAMILY.rounds("leaky_relu.default", "self or slope · self")
def leaky_relu(a: Algebra[V], self: V, negative_slope: Scalar = 0.01) -> V:
    x = a.wide(self)
    return a.cast(a.where(a.compare(x, 0, "gt"), x, a.mul(x, negative_slope)), self.dtype)


@FAMILY.rounds("leaky_relu_backward.default", "grad_output or slope · grad_output")
def leaky_relu_backward(a: Algebra[V], grad_output: V, self: V, negative_slope: Scalar, self_is_result: bool) -> V:
    """The sign of `self` is that of the result, unless the slope is negative."""
    if self_is_result and negative_slope < 0:
        raise MalformedError("the result does not tell the sign of the input where the slope is negative")
    g = a.wide(grad_output)
    return a.cast(a.where(a.compare(self, 0, "gt"), g, a.mul(g, negative_slope)), grad_output.dtype)


def log_of_sigmoid(a: Algebra[V], x: V) -> V:
    """The logarithm of sigmoid without overflow: min(x, 0) − log(1 + e^−|x|)."""
    return a.sub(a.minimum(x, 0), a.log1p(a.exp(a.neg(a.abs(x)))))


def _ramp(a: Algebra[V], x: V) -> V:
    return a.minimum(a.maximum(a.add(x, 3), 0), 6)


def _add_function(name: str, meaning: str, function: Callable[[Algebra[Any], Any], Any]) -> None:
    @FAMILY.composite(f"{name}.default", meaning)
    def computed(a: Algebra[V], self: V) -> V:
        result: V = function(a, a.wide(self))
        return a.cast(result, self.dtype)


_add_function("silu", "self · sigmoid(self)", lambda a, x: a.mul(x, a.sigmoid(x)))  # kernels also divide: x / (1 + e⁻ˣ)
_add_function("hardsigmoid", "min(max(self + 3, 0), 6) / 6", lambda a, x: divided(a, _ramp(a, x), 6))
_add_function("hardswish", "self · min(max(self + 3, 0), 6) / 6", lambda a, x: divided(a, a.mul(x, _ramp(a, x)), 6))
_add_function("log_sigmoid", "log sigmoid(self)", log_of_sigmoid)
_add_function("mish", "self · tanh(log(1 + e ^ self))", lambda a, x: a.mul(x, a.tanh(a.log1p(a.exp(x)))))


@FAMILY.composite("silu_backward.default", "gradient of silu")
def silu_backward(a: Algebra[V], grad_output: V, self: V) -> V:
    """With s = sigmoid(x): grad · s · (1 + x · (1 − s))."""
    g, x = a.wide(grad_output), a.wide(self)
    s = a.sigmoid(x)
    slope = a.mul(s, a.add(a.mul(x, a.sub(1, s)), 1))
    return a.cast(a.mul(g, slope), grad_output.dtype)


@FAMILY.composite("sigmoid_backward.default", "grad_output · (1 − output) · output")
def sigmoid_backward(a: Algebra[V], grad_output: V, output: V) -> V:
    """Three roundings, in either order of the products; in 16 bits some kernels round each of them."""
    g, y = narrowly_met(a, grad_output, output)
    return a.mul(a.mul(g, a.sub(1, y)), y)


@FAMILY.composite("tanh_backward.default", "grad_output · (1 − output²)")
def tanh_backward(a: Algebra[V], grad_output: V, output: V) -> V:
    """Three roundings, the square included; some kernels contract it with the difference."""
    dtype, (g, y) = met(a, grad_output, output)
    return a.cast(a.mul(g, a.sub(1, a.mul(y, y))), dtype)


@FAMILY.composite("gelu.default", "self · Φ(self)")
def gelu(a: Algebra[V], self: V, approximate: str = "none") -> V:
    """`none`: x/2 · (1 + erf(x / √2)); `tanh`: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).

    Kernels multiply by 1 / √2 or divide by √2, and some take erfc(−x / √2), which is closer to the exact value.
    """
    x = a.wide(self)
    bell = a.tanh(_inner(a, x)) if _is_tanh(approximate) else a.erf(a.mul(x, constant(a, math.sqrt(0.5), x.dtype)))
    return a.cast(a.mul(a.mul(x, 0.5), a.add(bell, 1)), self.dtype)


@FAMILY.composite("gelu_backward.default", "gradient of gelu")
def gelu_backward(a: Algebra[V], grad_output: V, self: V, approximate: str = "none") -> V:
    g, x = a.wide(grad_output), a.wide(self)
    slope = _tanh_slope(a, x) if _is_tanh(approximate) else _normal_slope(a, x)
    return a.cast(a.mul(g, slope), grad_output.dtype)


@FAMILY.composite("elu.default", "scale · (self or alpha · (e ^ (input_scale · self) − 1))")
def elu(a: Algebra[V], self: V, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> V:
    """`self` above 0; kernels round the two scales' product, or multiply one after the other."""
    x = a.wide(self)
    below = a.mul(a.mul(a.expm1(a.mul(x, input_scale)), alpha), scale)
    return a.cast(a.where(a.compare(x, 0, "gt"), a.mul(x, scale), below), self.dtype)


@FAMILY.composite("elu_backward.default", "gradient of elu")
def elu_backward(
    a: Algebra[V], grad_output: V, alpha: Scalar, scale: Scalar, input_scale: Scalar, is_result: bool, self_or_result: V
) -> V:
    """Below 0: grad · input_scale · (result + scale · alpha), or grad · input_scale · scale · alpha · e^…."""
    g, x = a.wide(grad_output), a.wide(self_or_result)
    height = a.mul(a.full((), alpha, x.dtype), scale)
    below = a.add(x, height) if is_result else a.mul(a.exp(a.mul(x, input_scale)), height)
    slope = a.where(a.compare(x, 0, "gt"), scale, a.mul(below, input_scale))
    return a.cast(a.mul(g, slope), grad_output.dtype)


@FAMILY.composite("softplus.default", "log(1 + e ^ (beta · self)) / beta, and self above the threshold")
def softplus(a: Algebra[V], self: V, beta: Scalar = 1, threshold: Scalar = 20) -> V:
    """Where beta · self exceeds the threshold, `self`."""
    x = a.wide(self)
    scaled = a.mul(x, beta)
    return a.cast(a.where(a.compare(scaled, threshold, "gt"), x, divided(a, a.log1p(a.exp(scaled)), beta)), self.dtype)


@FAMILY.composite("softplus_backward.default", "grad_output · sigmoid(beta · self)")
def softplus_backward(a: Algebra[V], grad_output: V, self: V, beta: Scalar, threshold: Scalar) -> V:
    """Kernels compute e^z / (1 + e^z), z = beta · self; `grad_output` where z exceeds the threshold."""
    g, scaled = a.wide(grad_output), a.mul(a.wide(self), beta)
    slope = a.where(a.compare(scaled, threshold, "gt"), 1, a.sigmoid(scaled))
    return a.cast(a.mul(g, slope), grad_output.dtype)


@FAMILY.composite("glu.default", "first half · sigmoid(second half)")
def glu(a: Algebra[V], self: V, dim: int = -1) -> V:
    """Raises `MalformedError` where the side along `dim` is odd."""
    axis, half = _halved(self, dim)
    x = a.wide(self)
    return a.cast(a.mul(part(a, x, axis, 0, half), a.sigmoid(part(a, x, axis, half, 2 * half))), self.dtype)


@FAMILY.rounds("hardsigmoid_backward.default", "grad_output / 6 strictly between −3 and 3, else 0")
def hardsigmoid_backward(a: Algebra[V], grad_output: V, self: V) -> V:
    """PyTorch rounds 1/6 to F32, also for F64."""
    g = a.wide(grad_output)
    sixth = a.cast(constant(a, 1 / 6, "F32"), g.dtype)
    between = a.logical_and(a.compare(self, -3, "gt"), a.compare(self, 3, "lt"))
    return a.cast(a.where(between, a.mul(g, sixth), 0), grad_output.dtype)


@FAMILY.composite(
    "hardswish_backward.default", "0 up to −3, grad_output from 3 on, grad_output · (self / 3 + 1/2) between"
)
def hardswish_backward(a: Algebra[V], grad_output: V, self: V) -> V:
    """Kernels divide by 3, or multiply by 1/3; where `self` is NaN, some give NaN, others `grad_output`."""
    g, x = a.wide(grad_output), a.wide(self)
    slope = a.mul(g, a.add(divided(a, x, 3), 0.5))
    below = a.where(a.compare(x, 3, "ge"), g, slope)
    return a.cast(a.where(a.compare(x, -3, "le"), 0, below), grad_output.dtype)


@FAMILY.composite("log_sigmoid_forward.default", "log sigmoid(self), and e ^ −|self|")
def log_sigmoid_forward(a: Algebra[V], self: V) -> tuple[V, V]:
    """The second result is what kernels on CPUs keep for the gradient."""
    x = a.wide(self)
    return a.cast(log_of_sigmoid(a, x), self.dtype), a.cast(a.exp(a.neg(a.abs(x))), self.dtype)


@FAMILY.composite("log_sigmoid_backward.default", "grad_output · sigmoid(−self)")
def log_sigmoid_backward(a: Algebra[V], grad_output: V, self: V, buffer: V) -> V:
    """With z = e^−|x|: z / (1 + z), or 1 − z / (1 + z) below 0; z is read from the buffer unless that is empty."""
    g, x = a.wide(grad_output), a.wide(self)
    z = a.wide(buffer) if buffer.shape == self.shape else a.exp(a.neg(a.abs(x)))
    share = a.div(z, a.add(z, 1))
    slope = a.where(a.compare(x, 0, "lt"), a.sub(1, share), share)
    return a.cast(a.mul(g, slope), grad_output.dtype)


@FAMILY.composite("mish_backward.default", "gradient of mish")
def mish_backward(a: Algebra[V], grad_output: V, self: V) -> V:
    """With t = tanh(log(1 + eˣ)): grad · (t + x · sigmoid(x) · (1 − t²))."""
    g, x = a.wide(grad_output), a.wide(self)
    t = a.tanh(a.log1p(a.exp(x)))
    bend = a.mul(a.mul(x, a.sigmoid(x)), a.sub(1, a.mul(t, t)))
    return a.cast(a.mul(g, a.add(t, bend)), grad_output.dtype)


@FAMILY.composite("glu_backward.default", "gradient of glu")
def glu_backward(a: Algebra[V], grad_output: V, self: V, dim: int) -> V:
    """With halves x and y, s = sigmoid(y): grad · s, then grad · x · s · (1 − s), each step rounded to 16 bits."""
    axis, half = _halved(self, dim)
    g, x = narrowly_met(a, grad_output, self)
    first, s = part(a, x, axis, 0, half), a.sigmoid(part(a, x, axis, half, 2 * half))
    second = a.mul(a.mul(a.mul(a.sub(1, s), s), g), first)
    return a.concat([a.mul(g, s), second], axis)


def _is_tanh(approximate: str) -> bool:
    if approximate not in {"none", "tanh"}:
        raise MalformedError(f"gelu with approximation {approximate[:40]!r}, which is neither none nor tanh")
    return approximate == "tanh"


def _inner(a: Algebra[V], x: V) -> V:
    cube = a.mul(a.mul(x, x), x)
    cubic = a.add(x, a.mul(cube, constant(a, _CUBIC, x.dtype)))
    return a.mul(cubic, constant(a, math.sqrt(2 / math.pi), x.dtype))


def _normal_slope(a: Algebra[V], x: V) -> V:
    """Φ(x) + x φ(x)."""
    cumulative = a.mul(a.add(a.erf(a.mul(x, constant(a, math.sqrt(0.5), x.dtype))), 1), 0.5)
    density = a.mul(a.exp(a.mul(a.mul(x, x), -0.5)), constant(a, math.sqrt(0.5 / math.pi), x.dtype))
    return a.add(cumulative, a.mul(x, density))


def _tanh_slope(a: Algebra[V], x: V) -> V:
    """(1 + t)/2 + x/2 · (1 − t²) · √(2/π) · (1 + 3 · 0.044715 x²), t = tanh(√(2/π) · (x + 0.044715 x³))."""
    t = a.tanh(_inner(a, x))
    cubic = a.add(a.mul(a.mul(x, x), constant(a, 3 * _CUBIC, x.dtype)), 1)
    inner_slope = a.mul(cubic, constant(a, math.sqrt(2 / math.pi), x.dtype))
    bell_slope = a.mul(a.mul(a.mul(x, 0.5), a.sub(1, a.mul(t, t))), inner_slope)
    return a.add(a.mul(a.add(t, 1), 0.5), bell_slope)


def _halved(x: V, dim: int) -> tuple[int, int]:
    axis = axis_of(x, dim)
    if not x.shape or x.shape[axis] % 2:
        raise MalformedError(f"no two halves of {x.shape} along axis {axis}")
    return axis, x.shape[axis] // 2


# Softmax, its logarithm, and their gradients.
#
# Shifted by the maximum, so that nothing overflows. Kernels that run over tiles and rescale a running sum round a few
# times more, as fused attention does; those of PyTorch for softmax alone do not, but some of them round powers of e,
# sums and their logarithms to 16 bits where that is the dtype of the result.

_NARROW = ("F16", "BF16")
Along = Callable[[Algebra[Any], Any, int, str], Any]


@FAMILY.composite("_safe_softmax.default", "softmax, 0 where all are −∞")
def safe_softmax(a: Algebra[V], self: V, dim: int, dtype: Dtype | None = None) -> V:
    """Rows without any finite element are 0 rather than NaN."""
    x = a.cast(self, dtype or self.dtype)
    if 0 in x.shape:
        return x
    axis, raised = axis_of(x, dim), lifted(a, x)
    masked = a.compare(a.max(raised, (axis,), keep=True), float("-inf"), "eq")
    return a.reshape(a.where(masked, 0, _softmax(a, raised, axis, x.dtype)), x.shape)


@FAMILY.composite("_softmax_backward_data.default", "output · (grad − Σ grad · output)")
def softmax_backward(a: Algebra[V], grad_output: V, output: V, dim: int, input_dtype: Dtype) -> V:
    """Kernels also subtract output · Σ from grad · output, which is no closer."""
    g, y, axis = a.wide(lifted(a, grad_output)), a.wide(lifted(a, output)), axis_of(output, dim)
    mean = a.sum(a.mul(g, y), (axis,), keep=True)
    return a.reshape(a.cast(a.mul(y, a.sub(g, mean)), input_dtype), output.shape)


@FAMILY.composite("_log_softmax_backward_data.default", "grad − e^output · Σ grad")
def log_softmax_backward(a: Algebra[V], grad_output: V, output: V, dim: int, input_dtype: Dtype) -> V:
    g, y, axis = a.wide(lifted(a, grad_output)), a.wide(lifted(a, output)), axis_of(output, dim)
    total = a.sum(g, (axis,), keep=True)
    return a.reshape(a.cast(a.sub(g, a.mul(a.exp(y), total)), input_dtype), output.shape)


def softmax_along(a: Algebra[V], x: V, axis: int, dtype: str = "F32") -> V:
    """At the dtype of `x`, for a result of `dtype`, at most 1; a tensor without elements is its own softmax.

    Kernels divide by the sum, or multiply by its inverse.
    """
    if 0 in x.shape:
        return x
    e = a.exp(a.sub(x, a.max(x, (axis,), keep=True)))
    inverse = a.div(1, a.sum(e, (axis,), keep=True))
    return a.mul(stored(a, e, dtype) if dtype in _NARROW else e, inverse)


def log_softmax_along(a: Algebra[V], x: V, axis: int, dtype: str = "F32") -> V:
    """At the dtype of `x`, for a result of `dtype`; a tensor without elements is its own result.

    (x − max) − log Σ e^(x − max), in this order: max + log Σ first would lose what differs between large logits.
    """
    if 0 in x.shape:
        return x
    shifted = a.sub(x, a.max(x, (axis,), keep=True))
    total = a.sum(a.exp(shifted), (axis,), keep=True)
    if dtype in _NARROW:
        return a.sub(shifted, stored(a, a.log(stored(a, total, dtype)), dtype))
    return a.sub(shifted, a.log(total))


def _softmax(a: Algebra[V], x: V, dim: int, into: str, along: Along = softmax_along) -> V:
    result: V = along(a, a.wide(lifted(a, x)), axis_of(x, dim), into)
    return a.reshape(a.cast(result, into), x.shape)


def _add_softmax(name: str, meaning: str, along: Along) -> None:
    @FAMILY.composite(f"_{name}.default", meaning)
    def plain(a: Algebra[V], self: V, dim: int, half_to_float: bool) -> V:
        return _softmax(a, self, dim, "F32" if half_to_float else self.dtype, along)

    @FAMILY.composite(f"{name}.int", meaning)
    def converted(a: Algebra[V], self: V, dim: int, dtype: Dtype | None = None) -> V:
        """In `dtype`, to which `self` is converted first."""
        into = dtype or self.dtype
        return _softmax(a, a.cast(self, into), dim, into, along)


_add_softmax("softmax", "e^x / Σ e^x along dim", softmax_along)
_add_softmax("log_softmax", "x − log Σ e^x along dim", log_softmax_along)

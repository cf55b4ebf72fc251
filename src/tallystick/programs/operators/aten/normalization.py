"""Layer, root-mean-square and weight normalization, with the moments that all normalizations share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Generic

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Axes, Typed, V
from tallystick.programs.operators.aten.arguments import axis_of
from tallystick.programs.operators.aten.contraction import summand
from tallystick.programs.operators.aten.convolution import masked
from tallystick.programs.operators.definition import Family, Ints
from tallystick.programs.operators.precision import FORMATS

# Variances are taken in two passes. Kernels write (x − mean)·rstd·weight + bias also as x·α + β (Ioffe & Szegedy 2015,
# arXiv:1502.03167, Algorithm 2): a sum of three terms in another order, which `summand` allows for. A kernel that takes
# the variance as E[x²] − E[x]² is another formula; only group normalization has it, in PyTorch's channels-last layout.

TERMS: Final = 4


@dataclass(frozen=True)
class Moments(Generic[V]):
    """Mean, sum of squared deviations, and 1 / √(variance + ε), with sides of 1 where they were taken."""

    mean: V
    squares: V
    rstd: V


def moments_of(a: Algebra[V], x: V, axes: Axes, eps: float, one_pass: bool = False) -> Moments[V]:
    """The moments over `axes`, the variance in two passes; with `one_pass` also as far off as E[x²] − E[x]² may be."""
    count = math.prod(x.shape[axis] for axis in axes)
    mean = a.div(a.sum(x, axes, keep=True), count)
    away = a.sub(x, mean)
    squares = a.sum(a.mul(away, away), axes, keep=True)
    variance = a.div(squares, count)
    if one_pass:
        mean_square = a.div(a.sum(a.mul(x, x), axes, keep=True), count)
        for each in (mean_square, a.mul(mean, mean)):
            variance = a.add(variance, nothing(a, each))
    return Moments(mean, squares, a.rsqrt(a.add(variance, eps)))


def nothing(a: Algebra[V], x: V) -> V:
    """0 with at least the error of `x`, as a term that cancels has it; 0 alone where `x` overflows."""
    return a.where(a.is_finite(x), a.sub(x, x), 0.0)


def normalize(a: Algebra[V], x: V, mean: V, rstd: V, gain: V | None, shift: V | None) -> V:
    """(x − mean)·rstd·gain + shift, with the three terms added in any order."""
    result = a.mul(centred(a, x, mean), rstd)
    if gain is not None:
        result = a.mul(result, gain)
    return result if shift is None else a.add(result, summand(a, shift, TERMS))


def centred(a: Algebra[V], x: V, mean: V) -> V:
    """The distance x − mean, as two of three terms that are added in any order."""
    return a.sub(summand(a, x, TERMS), summand(a, mean, TERMS))


def gradient_by_input(a: Algebra[V], g: V, x: V, mean: V, rstd: V, axes: Axes) -> V:
    """rstd·g − rstd·Σg/n − (x − mean)·rstd³·(Σg·x − mean·Σg)/n; Σg·x before the mean is taken off, as kernels do."""
    count = math.prod(x.shape[axis] for axis in axes)
    total, dotted = a.sum(g, axes, keep=True), a.sum(a.mul(g, x), axes, keep=True)
    slope = a.div(a.mul(a.sub(dotted, a.mul(mean, total)), a.mul(a.mul(rstd, rstd), rstd)), count)
    level = a.div(a.mul(total, rstd), count)
    direct = a.sub(summand(a, a.mul(g, rstd), TERMS), summand(a, level, TERMS))
    return a.sub(direct, a.mul(centred(a, x, mean), slope))


def stored(a: Algebra[V], statistic: V, input: Typed) -> V:
    """A statistic as wide as it is, with the rounding of kernels that store it in the type of the input."""
    return a.cast(a.cast(statistic, input.dtype), statistic.dtype)


def widened(a: Algebra[V], x: V | None) -> V | None:
    """The operand in the dtype in which kernels compute; `None` if there is none."""
    return None if x is None else a.wide(x)


def present(x: V | None, name: str) -> V:
    """Raise `MalformedError` where an operand is missing that the call needs."""
    if x is None:
        raise MalformedError(f"the {name} is missing")
    return x


def check_shape(x: Typed, shape: Ints) -> None:
    """Raise `MalformedError` unless `x` holds floats of this shape."""
    if x.shape != shape:
        raise MalformedError(f"shape {list(x.shape)} where {list(shape)} is needed")
    check_floats(x)


def check_floats(x: Typed) -> None:
    """Raise `MalformedError` unless `x` holds floats."""
    if x.dtype not in FLOATS:
        raise MalformedError(f"{x.dtype} where floats are needed")


# Statistics of layer normalization of F16 and BF16 are F32 on GPUs, while kernels on CPUs store them in the type of the
# input: results here are F32 and pass through the narrower type.

FAMILY: Final = Family("aten")


@FAMILY.composite("layer_norm.default", "(x − mean) / √(variance + ε) · weight + bias over the last axes")
def layer_norm(
    a: Algebra[V],
    input: V,
    normalized_shape: Ints,
    weight: V | None = None,
    bias: V | None = None,
    eps: float = 1e-05,
    cudnn_enable: bool = True,
) -> V:
    """Any shape that ends in `normalized_shape`."""
    return native_layer_norm(a, input, normalized_shape, weight, bias, eps)[0]


@FAMILY.composite("native_layer_norm.default", "layer normalization, with its mean and reciprocal deviation")
def native_layer_norm(
    a: Algebra[V], input: V, normalized_shape: Ints, weight: V | None, bias: V | None, eps: float
) -> tuple[V, V, V]:
    """The result, and two statistics with sides of 1 in place of `normalized_shape`."""
    axes = _normalized_axes(input, normalized_shape, weight, bias)
    x = a.wide(input)
    moments = moments_of(a, x, axes, eps)
    result = normalize(a, x, moments.mean, moments.rstd, widened(a, weight), widened(a, bias))
    return a.cast(result, input.dtype), stored(a, moments.mean, input), stored(a, moments.rstd, input)


@FAMILY.composite("native_layer_norm_backward.default", "gradients of layer normalization by input, weight and bias")
def native_layer_norm_backward(
    a: Algebra[V],
    grad_out: V,
    input: V,
    normalized_shape: Ints,
    mean: V,
    rstd: V,
    weight: V | None,
    bias: V | None,
    output_mask: tuple[bool, ...],
) -> tuple[V | None, V | None, V | None]:
    """Gradients that `output_mask` leaves out are `None`; kernels on CPUs add up rows in the type of the input."""
    axes = _normalized_axes(input, normalized_shape, weight, bias)
    wanted = masked(output_mask, 3)
    check_shape(grad_out, input.shape)
    statistics = _kept_shape(input, axes)
    check_shape(mean, statistics)
    check_shape(rstd, statistics)
    x, g = a.wide(input), a.wide(grad_out)
    mean, rstd = a.cast(mean, x.dtype), a.cast(rstd, x.dtype)
    rows = tuple(range(len(x.shape) - len(axes)))
    short = math.prod(x.shape[axis] for axis in rows) + 1
    by_input = by_weight = by_bias = None
    if wanted[0]:
        weighted = g if weight is None else a.mul(g, a.wide(weight))
        by_input = a.cast(gradient_by_input(a, weighted, x, mean, rstd, axes), input.dtype)
    if wanted[1]:
        scaled = a.mul(centred(a, x, mean), rstd)
        by_weight = a.cast(a.sum(a.mul(g, scaled), rows, short=short), present(weight, "weight").dtype)
    if wanted[2]:
        by_bias = a.cast(a.sum(g, rows, short=short), present(weight if bias is None else bias, "bias").dtype)
    return by_input, by_weight, by_bias


@FAMILY.composite("rms_norm.default", "x / √(mean x² + ε) · weight over the last axes")
def rms_norm(a: Algebra[V], input: V, normalized_shape: Ints, weight: V | None = None, eps: float | None = None) -> V:
    """Without `eps` it is the distance from 1 to the next number of the type computed in."""
    return fused_rms_norm(a, input, normalized_shape, weight, eps)[0]


@FAMILY.composite("_fused_rms_norm.default", "root-mean-square normalization, with its reciprocal root")
def fused_rms_norm(a: Algebra[V], input: V, normalized_shape: Ints, weight: V | None, eps: float | None) -> tuple[V, V]:
    """The result, and the reciprocal root, which for F16 and BF16 is F32 (Zhang & Sennrich 2019, arXiv:1910.07467)."""
    axes = _normalized_axes(input, normalized_shape, weight)
    x = a.wide(input)
    mean = a.div(a.sum(a.mul(x, x), axes, keep=True), math.prod(normalized_shape))
    rstd = a.rsqrt(a.add(mean, 2 * FORMATS[x.dtype].unit if eps is None else eps))
    result = a.mul(x, rstd)
    if weight is not None:
        result = a.mul(result, a.wide(weight))
    return a.cast(result, input.dtype), rstd


@FAMILY.composite("_fused_rms_norm_backward.default", "gradients of root-mean-square normalization by input and weight")
def fused_rms_norm_backward(
    a: Algebra[V],
    grad_out: V,
    input: V,
    normalized_shape: Ints,
    rstd: V,
    weight: V | None,
    output_mask: tuple[bool, ...],
) -> tuple[V | None, V | None]:
    """Gradients that `output_mask` leaves out are `None`."""
    axes = _normalized_axes(input, normalized_shape, weight)
    wanted = masked(output_mask, 2)
    check_shape(grad_out, input.shape)
    check_shape(rstd, _kept_shape(input, axes))
    x, g = a.wide(input), a.wide(grad_out)
    scaled = a.mul(x, a.cast(rstd, x.dtype))
    by_input = by_weight = None
    if wanted[0]:
        weighted = g if weight is None else a.mul(g, a.wide(weight))
        shared = a.div(a.sum(a.mul(weighted, scaled), axes, keep=True), math.prod(normalized_shape))
        inner = a.sub(weighted, a.mul(scaled, shared))
        by_input = a.cast(a.mul(inner, a.cast(rstd, x.dtype)), input.dtype)
    if wanted[1]:
        rows = tuple(range(len(x.shape) - len(axes)))
        by_weight = a.cast(a.sum(a.mul(g, scaled), rows), present(weight, "weight").dtype)
    return by_input, by_weight


def _normalized_axes(x: Typed, normalized: Ints, *affine: Typed | None) -> Axes:
    first = len(x.shape) - len(normalized)
    if not normalized or first < 0 or x.shape[first:] != normalized or 0 in normalized:
        raise MalformedError(f"{list(x.shape)} does not end in a normalized shape {list(normalized)[:8]}")
    check_floats(x)
    for each in affine:
        if each is not None:
            check_shape(each, normalized)
    return tuple(range(first, len(x.shape)))


def _kept_shape(x: Typed, axes: Axes) -> Ints:
    return tuple(1 if i in axes else side for i, side in enumerate(x.shape))


# A weight as a direction times a length, and the gradients of both (Salimans & Kingma 2016, arXiv:1602.07868).


@FAMILY.composite("_weight_norm_interface.default", "v · g / ‖v‖, and ‖v‖, for each index of one axis")
def weight_norm(a: Algebra[V], v: V, g: V, dim: int = 0) -> tuple[V, V]:
    """The axis is the first or the last; the norms of F16 and BF16 are F32."""
    axes = _others(v, g, dim)
    x = a.wide(v)
    norms = a.sqrt(a.sum(a.mul(x, x), axes, keep=True))
    return a.cast(a.mul(x, a.div(a.wide(g), norms)), v.dtype), norms


@FAMILY.composite("_weight_norm_interface_backward.default", "gradients of v · g / ‖v‖ by v and g")
def weight_norm_backward(a: Algebra[V], grad_w: V, saved_v: V, saved_g: V, saved_norms: V, dim: int) -> tuple[V, V]:
    """With s = Σ grad·v: (grad − v·s/‖v‖²)·g/‖v‖, and s/‖v‖."""
    axes = _others(saved_v, saved_g, dim)
    if grad_w.shape != saved_v.shape or saved_norms.shape != saved_g.shape:
        raise MalformedError(f"a gradient {list(grad_w.shape)} and norms {list(saved_norms.shape)} of other shapes")
    w, v, g, norms = (a.wide(each) for each in (grad_w, saved_v, saved_g, saved_norms))
    by_length = a.div(a.sum(a.mul(w, v), axes, keep=True), norms)
    scale = a.div(g, norms)
    by_direction = a.sub(a.mul(w, scale), a.mul(v, a.div(a.mul(scale, by_length), norms)))
    return a.cast(by_direction, saved_v.dtype), a.cast(by_length, saved_g.dtype)


def _others(v: Typed, g: Typed, dim: int) -> Axes:
    """The axes that norms are taken over."""
    axis = axis_of(v, dim)
    if len(v.shape) < 2 or axis not in {0, len(v.shape) - 1} or v.dtype not in FLOATS or g.dtype != v.dtype:
        raise MalformedError(f"norms of {v.dtype}{list(v.shape)} along axis {dim}, lengths of {g.dtype}")
    if g.shape != tuple(side if i == axis else 1 for i, side in enumerate(v.shape)):
        raise MalformedError(f"lengths {list(g.shape)} of {list(v.shape)} along axis {dim}")
    return tuple(i for i in range(len(v.shape)) if i != axis)

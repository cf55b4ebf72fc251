"""Layer and root-mean-square normalization, and their gradients.

Statistics of layer normalization of F16 and BF16 are F32 on GPUs, while kernels on CPUs store them in the type of the
input: results here are F32 and pass through the narrower type.
"""

from __future__ import annotations

import math
from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, Axes, Typed, V
from tallystick.operators.aten.convolution import masked
from tallystick.operators.aten.moments import (
    Sides,
    centred,
    check_floats,
    check_shape,
    gradient_by_input,
    moments_of,
    normalize,
    present,
    stored,
    widened,
)
from tallystick.operators.definition import Exactness, Family

FAMILY: Final = Family()

_EPSILONS: Final = {"F32": 2.0**-23, "F64": 2.0**-52}
_AFFINE: Final = "Tensor? weight=None, Tensor? bias=None, float eps=1e-05"


@FAMILY.operator(
    "aten.layer_norm.default",
    f"Tensor input, int[] normalized_shape, {_AFFINE}, bool cudnn_enable=True",
    "(x − mean) / √(variance + ε) · weight + bias over the last axes",
    Exactness.COMPOSITE,
)
def layer_norm(
    a: Algebra[V],
    input: V,
    normalized_shape: Sides,
    weight: V | None,
    bias: V | None,
    eps: float,
    cudnn_enable: bool,
) -> V:
    """Any shape that ends in `normalized_shape`."""
    result: V = native_layer_norm(a, input, normalized_shape, weight, bias, eps)[0]
    return result


@FAMILY.operator(
    "aten.native_layer_norm.default",
    "Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps",
    "layer normalization, with its mean and reciprocal deviation",
    Exactness.COMPOSITE,
)
def native_layer_norm(
    a: Algebra[V], input: V, normalized_shape: Sides, weight: V | None, bias: V | None, eps: float
) -> tuple[V, V, V]:
    """The result, and two statistics with sides of 1 in place of `normalized_shape`."""
    axes = _normalized_axes(input, normalized_shape, weight, bias)
    x = a.wide(input)
    moments = moments_of(a, x, axes, eps)
    result = normalize(a, x, moments.mean, moments.rstd, widened(a, weight), widened(a, bias))
    return a.cast(result, input.dtype), stored(a, moments.mean, input), stored(a, moments.rstd, input)


@FAMILY.operator(
    "aten.native_layer_norm_backward.default",
    "Tensor grad_out, Tensor input, int[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, "
    "bool[] output_mask",
    "gradients of layer normalization by input, weight and bias",
    Exactness.COMPOSITE,
)
def native_layer_norm_backward(
    a: Algebra[V],
    grad_out: V,
    input: V,
    normalized_shape: Sides,
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


@FAMILY.operator(
    "aten.rms_norm.default",
    "Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None",
    "x / √(mean x² + ε) · weight over the last axes",
    Exactness.COMPOSITE,
)
def rms_norm(a: Algebra[V], input: V, normalized_shape: Sides, weight: V | None, eps: float | None) -> V:
    """Without `eps` it is the distance from 1 to the next number of the type computed in."""
    result: V = fused_rms_norm(a, input, normalized_shape, weight, eps)[0]
    return result


@FAMILY.operator(
    "aten._fused_rms_norm.default",
    "Tensor input, int[] normalized_shape, Tensor? weight, float? eps",
    "root-mean-square normalization, with its reciprocal root",
    Exactness.COMPOSITE,
)
def fused_rms_norm(
    a: Algebra[V], input: V, normalized_shape: Sides, weight: V | None, eps: float | None
) -> tuple[V, V]:
    """The result, and the reciprocal root, which for F16 and BF16 is F32 (Zhang & Sennrich 2019, arXiv:1910.07467)."""
    axes = _normalized_axes(input, normalized_shape, weight)
    x = a.wide(input)
    mean = a.div(a.sum(a.mul(x, x), axes, keep=True), math.prod(normalized_shape))
    rstd = a.rsqrt(a.add(mean, _EPSILONS[x.dtype] if eps is None else eps))
    result = a.mul(x, rstd)
    if weight is not None:
        result = a.mul(result, a.wide(weight))
    return a.cast(result, input.dtype), rstd


@FAMILY.operator(
    "aten._fused_rms_norm_backward.default",
    "Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight, bool[] output_mask",
    "gradients of root-mean-square normalization by input and weight",
    Exactness.COMPOSITE,
)
def fused_rms_norm_backward(
    a: Algebra[V],
    grad_out: V,
    input: V,
    normalized_shape: Sides,
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


def _normalized_axes(x: Typed, normalized: Sides, *affine: Typed | None) -> Axes:
    first = len(x.shape) - len(normalized)
    if not normalized or first < 0 or x.shape[first:] != normalized or 0 in normalized:
        raise MalformedError(f"{list(x.shape)} does not end in a normalized shape {list(normalized)[:8]}")
    check_floats(x)
    for each in affine:
        if each is not None:
            check_shape(each, normalized)
    return tuple(range(first, len(x.shape)))


def _kept_shape(x: Typed, axes: Axes) -> Sides:
    return tuple(1 if i in axes else side for i, side in enumerate(x.shape))

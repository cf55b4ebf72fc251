"""Layer, group, batch and root-mean-square normalization, and their gradients.

Variances are taken in two passes. Kernels write (x − mean)·rstd·weight + bias also as x·α + β (Ioffe & Szegedy 2015,
arXiv:1502.03167, Algorithm 2): a sum of three terms in another order, which `summand` allows for. A kernel that takes
the variance as E[x²] − E[x]² is another formula and outside the bound.

Statistics of layer and batch normalization of F16 and BF16 are F32 on GPUs, while kernels on CPUs store them in the
type of the input: results here are F32 and pass through the narrower type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Generic

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, Axes, Typed, V
from tallystick.operators.aten.contraction import summand
from tallystick.operators.aten.convolution import masked
from tallystick.operators.operator import Exactness, Family
from tallystick.operators.shapes import FLOATS

FAMILY: Final = Family()

Sides = tuple[int, ...]

_EPSILONS: Final = {"F32": 2.0**-23, "F64": 2.0**-52}
_TERMS: Final = 4
_AFFINE: Final = "Tensor? weight=None, Tensor? bias=None, float eps=1e-05"
_BATCH: Final = "Tensor input, Tensor? weight, Tensor? bias"
_RUNNING: Final = "Tensor running_mean, Tensor running_var"


@dataclass(frozen=True)
class Moments(Generic[V]):
    """Mean, sum of squared deviations, and 1 / √(variance + ε), with sides of 1 where they were taken."""

    mean: V
    squares: V
    rstd: V


# ---- layer normalization


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
    moments = _moments(a, x, axes, eps)
    result = _normalize(a, x, moments.mean, moments.rstd, _widened(a, weight), _widened(a, bias))
    return a.cast(result, input.dtype), _stored(a, moments.mean, input), _stored(a, moments.rstd, input)


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
    """Gradients that `output_mask` leaves out are `None`."""
    axes = _normalized_axes(input, normalized_shape, weight, bias)
    wanted = masked(output_mask, 3)
    _check_shape(grad_out, input.shape)
    statistics = _kept_shape(input, axes)
    _check_shape(mean, statistics)
    _check_shape(rstd, statistics)
    x, g = a.wide(input), a.wide(grad_out)
    mean, rstd = a.cast(mean, x.dtype), a.cast(rstd, x.dtype)
    rows = tuple(range(len(x.shape) - len(axes)))
    by_input = by_weight = by_bias = None
    if wanted[0]:
        weighted = g if weight is None else a.mul(g, a.wide(weight))
        by_input = a.cast(_by_input(a, weighted, x, mean, rstd, axes), input.dtype)
    if wanted[1]:
        scaled = a.mul(_centred(a, x, mean), rstd)
        by_weight = a.cast(a.sum(a.mul(g, scaled), rows), _present(weight, "weight").dtype)
    if wanted[2]:
        by_bias = a.cast(a.sum(g, rows), _present(weight if bias is None else bias, "bias").dtype)
    return by_input, by_weight, by_bias


# ---- group normalization


@FAMILY.operator(
    "aten.group_norm.default",
    f"Tensor input, int num_groups, {_AFFINE}, bool cudnn_enabled=True",
    "(x − mean) / √(variance + ε) · weight + bias over groups of channels",
    Exactness.COMPOSITE,
)
def group_norm(
    a: Algebra[V],
    input: V,
    num_groups: int,
    weight: V | None,
    bias: V | None,
    eps: float,
    cudnn_enabled: bool,
) -> V:
    """[n,c,…], with `num_groups` groups of neighbouring channels."""
    if len(input.shape) < 2:
        raise MalformedError(f"group normalization of {len(input.shape)} axes")
    n, c, *spatial = input.shape
    result: V = native_group_norm(a, input, weight, bias, n, c, math.prod(spatial), num_groups, eps)[0]
    return result


@FAMILY.operator(
    "aten.native_group_norm.default",
    "Tensor input, Tensor? weight, Tensor? bias, int N, int C, int HxW, int group, float eps",
    "group normalization, with its mean and reciprocal deviation",
    Exactness.COMPOSITE,
)
def native_group_norm(
    a: Algebra[V],
    input: V,
    weight: V | None,
    bias: V | None,
    N: int,  # noqa: N803
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[V, V, V]:
    """The result, and two statistics [n,group] of the type of the input."""
    grouped = _grouped_shape(input, N, C, HxW, group, weight, bias)
    x = a.reshape(a.wide(input), grouped)
    moments = _moments(a, x, (2, 3), eps)
    gain, shift = (_per_channel(a, each, grouped) for each in (weight, bias))
    result = a.reshape(_normalize(a, x, moments.mean, moments.rstd, gain, shift), input.shape)
    mean, rstd = (a.cast(a.reshape(each, (N, group)), input.dtype) for each in (moments.mean, moments.rstd))
    return a.cast(result, input.dtype), mean, rstd


@FAMILY.operator(
    "aten.native_group_norm_backward.default",
    "Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, int N, int C, int HxW, int group, "
    "bool[] output_mask",
    "gradients of group normalization by input, weight and bias",
    Exactness.COMPOSITE,
)
def native_group_norm_backward(
    a: Algebra[V],
    grad_out: V,
    input: V,
    mean: V,
    rstd: V,
    weight: V | None,
    N: int,  # noqa: N803
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    output_mask: tuple[bool, ...],
) -> tuple[V | None, V | None, V | None]:
    """Gradients that `output_mask` leaves out are `None`."""
    grouped = _grouped_shape(input, N, C, HxW, group, weight, None)
    wanted = masked(output_mask, 3)
    _check_shape(grad_out, input.shape)
    x, g = (a.reshape(a.wide(each), grouped) for each in (input, grad_out))
    mean, rstd = (a.reshape(a.cast(each, x.dtype), (N, group, 1, 1)) for each in (mean, rstd))
    gain = _per_channel(a, weight, grouped)
    kind = input.dtype if weight is None else weight.dtype
    by_input = by_weight = by_bias = None
    if wanted[0]:
        weighted = g if gain is None else a.mul(g, gain)
        by_input = a.cast(a.reshape(_by_input(a, weighted, x, mean, rstd, (2, 3)), input.shape), input.dtype)
    if wanted[1]:
        by_rows = a.sum(a.mul(g, a.mul(x, rstd)), (0, 3))
        by_means = a.sum(a.mul(g, a.mul(mean, rstd)), (0, 3))
        by_weight = a.cast(a.reshape(a.sub(by_rows, by_means), (C,)), kind)
    if wanted[2]:
        by_bias = a.cast(a.reshape(a.sum(g, (0, 3)), (C,)), kind)
    return by_input, by_weight, by_bias


# ---- batch normalization


@FAMILY.operator(
    "aten.batch_norm.default",
    f"{_BATCH}, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, "
    "bool cudnn_enabled",
    "(x − mean) / √(variance + ε) · weight + bias per channel",
    Exactness.COMPOSITE,
)
def batch_norm(
    a: Algebra[V],
    input: V,
    weight: V | None,
    bias: V | None,
    running_mean: V | None,
    running_var: V | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> V:
    """[n,c,…]: statistics of the batch in training, the running ones otherwise, which stay as they are."""
    result: V = native_batch_norm(a, input, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return result


@FAMILY.operator(
    "aten.native_batch_norm.default",
    f"{_BATCH}, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps",
    "batch normalization, with the mean and reciprocal deviation of the batch",
    Exactness.COMPOSITE,
)
@FAMILY.operator(
    "aten._native_batch_norm_legit.default",
    f"{_BATCH}, {_RUNNING}, bool training, float momentum, float eps",
    "batch normalization, with the mean and reciprocal deviation of the batch",
    Exactness.COMPOSITE,
)
def native_batch_norm(
    a: Algebra[V],
    input: V,
    weight: V | None,
    bias: V | None,
    running_mean: V | None,
    running_var: V | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[V, V, V]:
    """The result and two statistics [c], which are [0] outside training; running statistics stay as they are.

    New running statistics are results of `_native_batch_norm_legit_functional`.
    """
    _check_channels(input, weight, bias, running_mean, running_var)
    if training:
        return _over_batch(a, input, weight, bias, eps)[0]
    mean, variance = _present(running_mean, "running mean"), _present(running_var, "running variance")
    x = a.wide(input)
    rstd = a.rsqrt(a.add(_column(a, variance, x), eps))
    result = _normalize(a, x, _column(a, mean, x), rstd, *(_optional_column(a, each, x) for each in (weight, bias)))
    return a.cast(result, input.dtype), a.full((0,), 0, x.dtype), a.full((0,), 0, x.dtype)


@FAMILY.operator(
    "aten._native_batch_norm_legit_no_training.default",
    f"{_BATCH}, {_RUNNING}, float momentum, float eps",
    "batch normalization by the running statistics",
    Exactness.COMPOSITE,
)
def batch_norm_without_training(
    a: Algebra[V],
    input: V,
    weight: V | None,
    bias: V | None,
    running_mean: V,
    running_var: V,
    momentum: float,
    eps: float,
) -> tuple[V, V, V]:
    """The result, and two empty tensors."""
    results: tuple[V, V, V] = native_batch_norm(a, input, weight, bias, running_mean, running_var, False, momentum, eps)
    return results


@FAMILY.operator(
    "aten._native_batch_norm_legit.no_stats",
    f"{_BATCH}, bool training, float momentum, float eps",
    "batch normalization that keeps no running statistics",
    Exactness.COMPOSITE,
)
def batch_norm_without_statistics(
    a: Algebra[V], input: V, weight: V | None, bias: V | None, training: bool, momentum: float, eps: float
) -> tuple[V, V, V]:
    """The result and two statistics [c]; only in training."""
    results: tuple[V, V, V] = native_batch_norm(a, input, weight, bias, None, None, training, momentum, eps)
    return results


@FAMILY.operator(
    "aten._native_batch_norm_legit_functional.default",
    f"{_BATCH}, {_RUNNING}, bool training, float momentum, float eps",
    "batch normalization, with the statistics of the batch and the new running ones",
    Exactness.COMPOSITE,
)
def batch_norm_functional(
    a: Algebra[V],
    input: V,
    weight: V | None,
    bias: V | None,
    running_mean: V,
    running_var: V,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[V, V, V, V, V]:
    """(1 − momentum)·running + momentum·new, of the mean and of the unbiased variance."""
    if not training:
        results = native_batch_norm(a, input, weight, bias, running_mean, running_var, False, momentum, eps)
        return (*results, running_mean, running_var)
    _check_channels(input, weight, bias, running_mean, running_var)
    results, moments = _over_batch(a, input, weight, bias, eps)
    count = math.prod(input.shape) // input.shape[1]
    means = a.reshape(moments.mean, (input.shape[1],))
    variances = a.reshape(a.div(moments.squares, count - 1), (input.shape[1],))
    return (*results, _moved(a, running_mean, means, momentum), _moved(a, running_var, variances, momentum))


@FAMILY.operator(
    "aten.native_batch_norm_backward.default",
    "Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, "
    "Tensor? save_invstd, bool train, float eps, bool[] output_mask",
    "gradients of batch normalization by input, weight and bias",
    Exactness.COMPOSITE,
)
def native_batch_norm_backward(
    a: Algebra[V],
    grad_out: V,
    input: V,
    weight: V | None,
    running_mean: V | None,
    running_var: V | None,
    save_mean: V | None,
    save_invstd: V | None,
    train: bool,
    eps: float,
    output_mask: tuple[bool, ...],
) -> tuple[V | None, V | None, V | None]:
    """Gradients that `output_mask` leaves out are `None`; in training the running statistics are not read."""
    _check_channels(input, weight, running_mean, running_var)
    _check_shape(grad_out, input.shape)
    wanted = masked(output_mask, 3)
    x, g = a.wide(input), a.wide(grad_out)
    if train:
        mean, rstd = (_column(a, _present(each, "statistics"), x) for each in (save_mean, save_invstd))
    else:
        mean = _column(a, _present(running_mean, "running mean"), x)
        rstd = a.rsqrt(a.add(_column(a, _present(running_var, "running variance"), x), eps))
    kind, axes = input.dtype if weight is None else weight.dtype, _all_but_channels(x)
    centred, total = a.sub(x, mean), a.sum(g, axes, keep=True)
    dotted = a.sum(a.mul(g, centred), axes, keep=True)
    by_input = None
    if wanted[0]:
        inner = _batch_inner(a, g, centred, total, dotted, rstd) if train else g
        gain = rstd if weight is None else a.mul(rstd, _column(a, weight, x))
        by_input = a.cast(a.mul(inner, gain), input.dtype)
    flat = (input.shape[1],)
    by_weight = a.cast(a.reshape(a.mul(dotted, rstd), flat), kind) if wanted[1] else None
    return by_input, by_weight, a.cast(a.reshape(total, flat), kind) if wanted[2] else None


# ---- root-mean-square normalization


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
    _check_shape(grad_out, input.shape)
    _check_shape(rstd, _kept_shape(input, axes))
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
        by_weight = a.cast(a.sum(a.mul(g, scaled), rows), _present(weight, "weight").dtype)
    return by_input, by_weight


# ---- shared formulas


def _moments(a: Algebra[V], x: V, axes: Axes, eps: float) -> Moments[V]:
    count = math.prod(x.shape[axis] for axis in axes)
    mean = a.div(a.sum(x, axes, keep=True), count)
    away = a.sub(x, mean)
    squares = a.sum(a.mul(away, away), axes, keep=True)
    return Moments(mean, squares, a.rsqrt(a.add(a.div(squares, count), eps)))


def _normalize(a: Algebra[V], x: V, mean: V, rstd: V, gain: V | None, shift: V | None) -> V:
    """(x − mean)·rstd·gain + shift, with the three terms added in any order."""
    result = a.mul(_centred(a, x, mean), rstd)
    if gain is not None:
        result = a.mul(result, gain)
    return result if shift is None else a.add(result, summand(a, shift, _TERMS))


def _centred(a: Algebra[V], x: V, mean: V) -> V:
    return a.sub(summand(a, x, _TERMS), summand(a, mean, _TERMS))


def _by_input(a: Algebra[V], g: V, x: V, mean: V, rstd: V, axes: Axes) -> V:
    """rstd·g − rstd·Σg/n − (x − mean)·rstd³·(Σg·x − mean·Σg)/n; Σg·x before the mean is taken off, as kernels do."""
    count = math.prod(x.shape[axis] for axis in axes)
    total, dotted = a.sum(g, axes, keep=True), a.sum(a.mul(g, x), axes, keep=True)
    slope = a.div(a.mul(a.sub(dotted, a.mul(mean, total)), a.mul(a.mul(rstd, rstd), rstd)), count)
    level = a.div(a.mul(total, rstd), count)
    direct = a.sub(summand(a, a.mul(g, rstd), _TERMS), summand(a, level, _TERMS))
    return a.sub(direct, a.mul(_centred(a, x, mean), slope))


def _over_batch(
    a: Algebra[V], input: V, weight: V | None, bias: V | None, eps: float
) -> tuple[tuple[V, V, V], Moments[V]]:
    x, flat = a.wide(input), (input.shape[1],)
    moments = _moments(a, x, _all_but_channels(x), eps)
    gain, shift = (_optional_column(a, each, x) for each in (weight, bias))
    result = a.cast(_normalize(a, x, moments.mean, moments.rstd, gain, shift), input.dtype)
    mean, rstd = (_stored(a, a.reshape(each, flat), input) for each in (moments.mean, moments.rstd))
    return (result, mean, rstd), moments


def _batch_inner(a: Algebra[V], g: V, centred: V, total: V, dotted: V, rstd: V) -> V:
    """G − Σg/n − (x − mean)·rstd²·Σg·(x − mean)/n."""
    count = math.prod(g.shape) // g.shape[1]
    slope = a.div(a.mul(dotted, a.mul(rstd, rstd)), count)
    return a.sub(a.sub(g, a.div(total, count)), a.mul(centred, slope))


def _moved(a: Algebra[V], running: V, new: V, momentum: float) -> V:
    """Kernels round the factors to F32 or compute in float64, so each term has more than its own rounding."""
    kept = summand(a, a.mul(a.cast(running, new.dtype), 1 - momentum), _TERMS)
    return a.cast(a.add(kept, summand(a, a.mul(new, momentum), _TERMS)), running.dtype)


def _stored(a: Algebra[V], statistic: V, input: Typed) -> V:
    """A statistic as wide as it is, with the rounding of kernels that store it in the type of the input."""
    return a.cast(a.cast(statistic, input.dtype), statistic.dtype)


# ---- shapes


def _normalized_axes(x: Typed, normalized: Sides, *affine: Typed | None) -> Axes:
    first = len(x.shape) - len(normalized)
    if not normalized or first < 0 or x.shape[first:] != normalized or 0 in normalized:
        raise MalformedError(f"{list(x.shape)} does not end in a normalized shape {list(normalized)[:8]}")
    _check_floats(x)
    for each in affine:
        if each is not None:
            _check_shape(each, normalized)
    return tuple(range(first, len(x.shape)))


def _kept_shape(x: Typed, axes: Axes) -> Sides:
    return tuple(1 if i in axes else side for i, side in enumerate(x.shape))


def _grouped_shape(x: Typed, n: int, c: int, area: int, groups: int, *affine: Typed | None) -> Sides:
    given = x.shape[:2] if len(x.shape) >= 2 else ()
    if given != (n, c) or math.prod(x.shape[2:]) != area or groups < 1 or c % groups or c * area == 0:
        raise MalformedError(f"{list(x.shape)} as {n} times {c} channels of {area} in {groups} groups")
    _check_floats(x)
    for each in affine:
        if each is not None:
            _check_shape(each, (c,))
    return (n, groups, c // groups, area)


def _per_channel(a: Algebra[V], x: V | None, grouped: Sides) -> V | None:
    return None if x is None else a.reshape(a.wide(x), (*grouped[1:3], 1))


def _check_channels(x: Typed, *statistics: Typed | None) -> None:
    if len(x.shape) < 2 or 0 in x.shape:
        raise MalformedError(f"batch normalization of shape {list(x.shape)}")
    _check_floats(x)
    for each in statistics:
        if each is not None:
            _check_shape(each, (x.shape[1],))


def _all_but_channels(x: Typed) -> Axes:
    return (0, *range(2, len(x.shape)))


def _column(a: Algebra[V], statistic: V, x: Typed) -> V:
    _check_shape(statistic, (x.shape[1],))
    return a.reshape(a.cast(statistic, x.dtype), (x.shape[1], *(1,) * (len(x.shape) - 2)))


def _optional_column(a: Algebra[V], statistic: V | None, x: Typed) -> V | None:
    return None if statistic is None else _column(a, statistic, x)


def _widened(a: Algebra[V], x: V | None) -> V | None:
    return None if x is None else a.wide(x)


def _present(x: V | None, name: str) -> V:
    if x is None:
        raise MalformedError(f"the {name} is missing")
    return x


def _check_shape(x: Typed, shape: Sides) -> None:
    if x.shape != shape:
        raise MalformedError(f"shape {list(x.shape)} where {list(shape)} is needed")
    _check_floats(x)


def _check_floats(x: Typed) -> None:
    if x.dtype not in FLOATS:
        raise MalformedError(f"{x.dtype} where floats are needed")

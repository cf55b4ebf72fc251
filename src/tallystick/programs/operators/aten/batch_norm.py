"""Batch and group normalization, running statistics, and gradients."""

from __future__ import annotations

import math
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, Axes, Typed, V
from tallystick.programs.operators.aten.contraction import summand
from tallystick.programs.operators.aten.convolution import masked
from tallystick.programs.operators.aten.normalization import (
    TERMS,
    Moments,
    check_floats,
    check_shape,
    gradient_by_input,
    moments_of,
    normalize,
    present,
    stored,
)
from tallystick.programs.operators.definition import Family, Ints

# Statistics of the batch for F16 and BF16 are F32 on GPUs, while kernels on CPUs store them in the type of the input:
# results here are F32 and pass through the narrower type.

FAMILY: Final = Family("aten")


@FAMILY.composite("batch_norm.default", "(x − mean) / √(variance + ε) · weight + bias per channel")
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
    return native_batch_norm(a, input, weight, bias, running_mean, running_var, training, momentum, eps)[0]


@FAMILY.composite(
    "native_batch_norm.default", "batch normalization, with the mean and reciprocal deviation of the batch"
)
@FAMILY.composite(
    "_native_batch_norm_legit.default",
    "batch normalization, with the mean and reciprocal deviation of the batch",
    running_mean="Tensor",
    running_var="Tensor",
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
    mean, variance = present(running_mean, "running mean"), present(running_var, "running variance")
    x = a.wide(input)
    rstd = a.rsqrt(a.add(_column(a, variance, x), eps))
    result = normalize(a, x, _column(a, mean, x), rstd, *(_optional_column(a, each, x) for each in (weight, bias)))
    return a.cast(result, input.dtype), a.full((0,), 0, x.dtype), a.full((0,), 0, x.dtype)


@FAMILY.composite("_native_batch_norm_legit_no_training.default", "batch normalization by the running statistics")
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
    return native_batch_norm(a, input, weight, bias, running_mean, running_var, False, momentum, eps)


@FAMILY.composite("_native_batch_norm_legit.no_stats", "batch normalization that keeps no running statistics")
def batch_norm_without_statistics(
    a: Algebra[V], input: V, weight: V | None, bias: V | None, training: bool, momentum: float, eps: float
) -> tuple[V, V, V]:
    """The result and two statistics [c]; only in training."""
    return native_batch_norm(a, input, weight, bias, None, None, training, momentum, eps)


@FAMILY.composite(
    "_native_batch_norm_legit_functional.default",
    "batch normalization, with the statistics of the batch and the new running ones",
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


@FAMILY.composite("native_batch_norm_backward.default", "gradients of batch normalization by input, weight and bias")
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
    check_shape(grad_out, input.shape)
    wanted = masked(output_mask, 3)
    x, g = a.wide(input), a.wide(grad_out)
    if train:
        mean, rstd = (_column(a, present(each, "statistics"), x) for each in (save_mean, save_invstd))
    else:
        mean = _column(a, present(running_mean, "running mean"), x)
        rstd = a.rsqrt(a.add(_column(a, present(running_var, "running variance"), x), eps))
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


def _over_batch(
    a: Algebra[V], input: V, weight: V | None, bias: V | None, eps: float
) -> tuple[tuple[V, V, V], Moments[V]]:
    x, flat = a.wide(input), (input.shape[1],)
    moments = moments_of(a, x, _all_but_channels(x), eps)
    gain, shift = (_optional_column(a, each, x) for each in (weight, bias))
    result = a.cast(normalize(a, x, moments.mean, moments.rstd, gain, shift), input.dtype)
    mean, rstd = (stored(a, a.reshape(each, flat), input) for each in (moments.mean, moments.rstd))
    return (result, mean, rstd), moments


def _batch_inner(a: Algebra[V], g: V, centred: V, total: V, dotted: V, rstd: V) -> V:
    """G − Σg/n − (x − mean)·rstd²·Σg·(x − mean)/n."""
    count = math.prod(g.shape) // g.shape[1]
    slope = a.div(a.mul(dotted, a.mul(rstd, rstd)), count)
    return a.sub(a.sub(g, a.div(total, count)), a.mul(centred, slope))


def _moved(a: Algebra[V], running: V, new: V, momentum: float) -> V:
    """Kernels compute 1 − momentum in F64, or after rounding `momentum` to F32 or to the type of the statistics."""
    share = a.full((), momentum, new.dtype)
    kept = summand(a, a.mul(a.cast(running, new.dtype), a.sub(1, share)), TERMS)
    return a.cast(a.add(kept, summand(a, a.mul(new, share), TERMS)), running.dtype)


def _check_channels(x: Typed, *statistics: Typed | None) -> None:
    if len(x.shape) < 2 or 0 in x.shape:
        raise MalformedError(f"batch normalization of shape {list(x.shape)}")
    check_floats(x)
    for each in statistics:
        if each is not None:
            check_shape(each, (x.shape[1],))


def _all_but_channels(x: Typed) -> Axes:
    return (0, *range(2, len(x.shape)))


def _column(a: Algebra[V], statistic: V, x: Typed) -> V:
    check_shape(statistic, (x.shape[1],))
    return a.reshape(a.cast(statistic, x.dtype), (x.shape[1], *(1,) * (len(x.shape) - 2)))


def _optional_column(a: Algebra[V], statistic: V | None, x: Typed) -> V | None:
    return None if statistic is None else _column(a, statistic, x)


@FAMILY.composite("group_norm.default", "(x − mean) / √(variance + ε) · weight + bias over groups of channels")
def group_norm(
    a: Algebra[V],
    input: V,
    num_groups: int,
    weight: V | None = None,
    bias: V | None = None,
    eps: float = 1e-05,
    cudnn_enabled: bool = True,
) -> V:
    """[n,c,…], with `num_groups` groups of neighbouring channels."""
    if len(input.shape) < 2:
        raise MalformedError(f"group normalization of {len(input.shape)} axes")
    n, c, *spatial = input.shape
    return native_group_norm(a, input, weight, bias, n, c, math.prod(spatial), num_groups, eps)[0]


@FAMILY.composite("native_group_norm.default", "group normalization, with its mean and reciprocal deviation")
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
    # PyTorch's channels-last kernel on CPUs; 16-bit numbers go through it in F32, whose rounding is too small to matter
    moments = moments_of(a, x, (2, 3), eps, one_pass=x.dtype == input.dtype)
    gain, shift = (_per_channel(a, each, grouped) for each in (weight, bias))
    result = a.reshape(normalize(a, x, moments.mean, moments.rstd, gain, shift), input.shape)
    mean, rstd = (a.cast(a.reshape(each, (N, group)), input.dtype) for each in (moments.mean, moments.rstd))
    return a.cast(result, input.dtype), mean, rstd


@FAMILY.composite("native_group_norm_backward.default", "gradients of group normalization by input, weight and bias")
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
    check_shape(grad_out, input.shape)
    x, g = (a.reshape(a.wide(each), grouped) for each in (input, grad_out))
    mean, rstd = (a.reshape(a.cast(each, x.dtype), (N, group, 1, 1)) for each in (mean, rstd))
    gain = _per_channel(a, weight, grouped)
    kind = input.dtype if weight is None else weight.dtype
    by_input = by_weight = by_bias = None
    if wanted[0]:
        weighted = g if gain is None else a.mul(g, gain)
        by_input = a.cast(a.reshape(gradient_by_input(a, weighted, x, mean, rstd, (2, 3)), input.shape), input.dtype)
    if wanted[1]:
        by_rows = a.sum(a.mul(g, a.mul(x, rstd)), (0, 3))
        by_means = a.sum(a.mul(g, a.mul(mean, rstd)), (0, 3))
        by_weight = a.cast(a.reshape(a.sub(by_rows, by_means), (C,)), kind)
    if wanted[2]:
        by_bias = a.cast(a.reshape(a.sum(g, (0, 3)), (C,)), kind)
    return by_input, by_weight, by_bias


def _grouped_shape(x: Typed, n: int, c: int, area: int, groups: int, *affine: Typed | None) -> Ints:
    given = x.shape[:2] if len(x.shape) >= 2 else ()
    if given != (n, c) or math.prod(x.shape[2:]) != area or groups < 1 or c % groups or c * area == 0:
        raise MalformedError(f"{list(x.shape)} as {n} times {c} channels of {area} in {groups} groups")
    check_floats(x)
    for each in affine:
        if each is not None:
            check_shape(each, (c,))
    return (n, groups, c // groups, area)


def _per_channel(a: Algebra[V], x: V | None, grouped: Ints) -> V | None:
    return None if x is None else a.reshape(a.wide(x), (*grouped[1:3], 1))

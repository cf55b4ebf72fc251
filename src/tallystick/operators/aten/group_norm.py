"""Group normalization and its gradients."""

from __future__ import annotations

import math
from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, Typed, V
from tallystick.operators.aten.convolution import masked
from tallystick.operators.aten.moments import Sides, check_floats, check_shape, gradient_by_input, moments_of, normalize
from tallystick.operators.definition import Exactness, Family

FAMILY: Final = Family()

_AFFINE: Final = "Tensor? weight=None, Tensor? bias=None, float eps=1e-05"


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
    # PyTorch's channels-last kernel on CPUs; 16-bit numbers go through it in F32, whose rounding is too small to matter
    moments = moments_of(a, x, (2, 3), eps, one_pass=x.dtype == input.dtype)
    gain, shift = (_per_channel(a, each, grouped) for each in (weight, bias))
    result = a.reshape(normalize(a, x, moments.mean, moments.rstd, gain, shift), input.shape)
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


def _grouped_shape(x: Typed, n: int, c: int, area: int, groups: int, *affine: Typed | None) -> Sides:
    given = x.shape[:2] if len(x.shape) >= 2 else ()
    if given != (n, c) or math.prod(x.shape[2:]) != area or groups < 1 or c % groups or c * area == 0:
        raise MalformedError(f"{list(x.shape)} as {n} times {c} channels of {area} in {groups} groups")
    check_floats(x)
    for each in affine:
        if each is not None:
            check_shape(each, (c,))
    return (n, groups, c // groups, area)


def _per_channel(a: Algebra[V], x: V | None, grouped: Sides) -> V | None:
    return None if x is None else a.reshape(a.wide(x), (*grouped[1:3], 1))

"""Nearest-neighbour resampling of lines and planes, and its gradient.

Kernels compute the source of place i as ⌊i·scale⌋ in F32. A definition must not depend on how a product rounds. So the
sources are exact quotients ⌊i·p/q⌋, and sizes for which no such quotient agrees with F32 are refused.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, V
from tallystick.operators.aten.contraction import check_rank
from tallystick.operators.definition import Exactness, Family

FAMILY: Final = Family()

Sides = tuple[int, ...]
Scales = tuple[float | None, ...]

SIDE_MAX: Final = 1 << 16
_DENOMINATOR_MAX: Final = 1000


@FAMILY.operator(
    "aten.upsample_nearest1d.default",
    "Tensor self, int[] output_size, float? scales=None",
    "nearest neighbours along a line",
    Exactness.MOVES,
)
def upsample_nearest1d(a: Algebra[V], self: V, output_size: Sides, scales: float | None) -> V:
    """[n,c,w] gives [n,c,w']."""
    return _resample(a, self, output_size, (scales,))


@FAMILY.operator(
    "aten.upsample_nearest2d.default",
    "Tensor self, int[] output_size, float? scales_h=None, float? scales_w=None",
    "nearest neighbours in a plane",
    Exactness.MOVES,
)
def upsample_nearest2d(a: Algebra[V], self: V, output_size: Sides, scales_h: float | None, scales_w: float | None) -> V:
    """[n,c,h,w] gives [n,c,h',w']."""
    return _resample(a, self, output_size, (scales_h, scales_w))


@FAMILY.operator(
    "aten.upsample_nearest1d.vec",
    "Tensor input, int[]? output_size, float[]? scale_factors",
    "nearest neighbours along a line",
    Exactness.MOVES,
)
def upsample_nearest1d_by_factor(
    a: Algebra[V], input: V, output_size: Sides | None, scale_factors: tuple[float, ...] | None
) -> V:
    """[n,c,w]: either the size is given, or a factor, of which the size is rounded down."""
    check_rank(input, 3)
    return _by_factor(a, input, output_size, scale_factors)


@FAMILY.operator(
    "aten.upsample_nearest2d.vec",
    "Tensor input, int[]? output_size, float[]? scale_factors",
    "nearest neighbours in a plane",
    Exactness.MOVES,
)
def upsample_nearest2d_by_factor(
    a: Algebra[V], input: V, output_size: Sides | None, scale_factors: tuple[float, ...] | None
) -> V:
    """[n,c,h,w]: either the sizes are given, or factors, of which the sizes are rounded down."""
    check_rank(input, 4)
    return _by_factor(a, input, output_size, scale_factors)


@FAMILY.operator(
    "aten.upsample_nearest2d_backward.default",
    "Tensor grad_output, int[] output_size, int[] input_size, float? scales_h=None, float? scales_w=None",
    "each gradient added where its value came from",
    Exactness.ACCUMULATES,
)
def upsample_nearest2d_backward(
    a: Algebra[V],
    grad_output: V,
    output_size: Sides,
    input_size: Sides,
    scales_h: float | None,
    scales_w: float | None,
) -> V:
    """[n,c,h',w'] gives `input_size`, [n,c,h,w]; kernels add in the type of the gradient."""
    scales = (scales_h, scales_w)
    _check_sizes(grad_output.shape, input_size, scales)
    if len(input_size) != 4 or output_size != grad_output.shape[2:] or grad_output.shape[:2] != input_size[:2]:
        raise MalformedError(f"gradient {list(grad_output.shape)} for {list(input_size)[:8]}")
    ratios = [_ratio(old, new, by) for old, new, by in zip(input_size[2:], output_size, scales, strict=True)]
    if all(ratio.numerator == 1 for ratio in ratios) and _is_whole(input_size, output_size, ratios):
        return _block_sums(a, grad_output, ratios)
    sources = _grid(a, output_size, ratios)
    return a.scatter(a.full(input_size, 0, grad_output.dtype), sources, 2, grad_output, add=True)


def _by_factor(a: Algebra[V], x: V, output_size: Sides | None, scale_factors: tuple[float, ...] | None) -> V:
    if (output_size is None) == (scale_factors is None):
        raise MalformedError("either output sizes or scale factors are needed")
    if output_size is not None:
        return _resample(a, x, output_size, (None,) * len(output_size))
    factors = scale_factors or ()
    if any(not 0 < factor <= SIDE_MAX for factor in factors) or len(factors) != len(x.shape) - 2:
        raise MalformedError(f"scale factors {list(factors)[:8]} for {list(x.shape)}")
    sizes = tuple(int(side * factor) for side, factor in zip(x.shape[2:], factors, strict=True))
    return _resample(a, x, sizes, factors)


def _resample(a: Algebra[V], x: V, sizes: Sides, scales: Scales) -> V:
    _check_sizes((*x.shape[:2], *sizes), x.shape, scales)
    ratios = [_ratio(old, new, scale) for old, new, scale in zip(x.shape[2:], sizes, scales, strict=True)]
    return a.take(x, _grid(a, sizes, ratios), 2)


def _grid(a: Algebra[V], sizes: Sides, ratios: list[Fraction]) -> list[V]:
    """For each axis the sources ⌊i·ratio⌋, shaped so that they broadcast together."""
    found = []
    for axis, (size, ratio) in enumerate(zip(sizes, ratios, strict=True)):
        scaled = a.mul(a.iota((size,), 0, "I64"), ratio.numerator)
        shape = [size if i == axis else 1 for i in range(len(sizes))]
        found.append(a.reshape(a.floor_divide(scaled, ratio.denominator), shape))
    return found


def _block_sums(a: Algebra[V], g: V, ratios: list[Fraction]) -> V:
    height, width = (ratio.denominator for ratio in ratios)
    n, c, h, w = g.shape
    return a.sum(a.reshape(g, (n, c, h // height, height, w // width, width)), (3, 5))


def _is_whole(inputs: Sides, sizes: Sides, ratios: list[Fraction]) -> bool:
    axes = zip(inputs[2:], sizes, ratios, strict=True)
    return all(new == old * ratio.denominator for old, new, ratio in axes)


def _ratio(old: int, new: int, scale: float | None) -> Fraction:
    """The quotient whose floors are the kernels' sources."""
    if new in (old, 2 * old):
        return Fraction(old, new)
    inverse = old / new if scale is None or scale <= 0 else 1 / scale
    product = np.arange(new, dtype=np.float32) * np.float32(inverse)
    sources = np.minimum(np.floor(product).astype(np.int64), old - 1)
    for ratio in (Fraction(old, new), Fraction(inverse).limit_denominator(_DENOMINATOR_MAX)):
        if np.array_equal(np.arange(new) * ratio.numerator // ratio.denominator, sources):
            return ratio
    raise MalformedError(f"resampling {old} to {new}: the sources depend on rounding")


def _check_sizes(results: Sides, inputs: Sides, scales: Scales) -> None:
    sides = (*results[2:], *inputs[2:])
    if len(results) != len(inputs) or len(results) != len(scales) + 2:
        raise MalformedError(f"resampling {list(inputs)[:8]} to {list(results)[:8]}")
    if any(not 1 <= side <= SIDE_MAX for side in sides):
        raise MalformedError(f"resampling sides {list(sides)}, not within 1 … {SIDE_MAX}")
    if any(scale is not None and not 1 / SIDE_MAX <= scale <= SIDE_MAX for scale in scales):
        raise MalformedError(f"resampling by {list(scales)}")

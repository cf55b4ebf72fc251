"""Maxima and means over windows, nearest-neighbour resampling, and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Typed, V
from tallystick.programs.operators.aten.contraction import check_rank
from tallystick.programs.operators.aten.convolution import sides
from tallystick.programs.operators.definition import Family, Ints

# Planes are the last two axes; what stands before them is kept. A window that `ceil_mode` lets stick out of the padded
# plane begins inside it (PyTorch, `pooling_output_shape`).

FAMILY: Final = Family("aten")


@dataclass(frozen=True)
class _Plane:
    """Windows over a plane of `inputs`, one result per position: everything but the values."""

    inputs: Ints
    results: Ints
    kernel: Ints
    strides: Ints
    padding: Ints
    dilations: Ints

    @property
    def high(self) -> Ints:
        """What is padded, or cropped, behind, so that the windows end with the plane."""
        spans = zip(self.results, self.kernel, self.strides, self.dilations, self.padding, self.inputs, strict=True)
        return tuple(
            (count - 1) * step + (side - 1) * dilation + 1 - low - length
            for count, side, step, dilation, low, length in spans
        )


@FAMILY.moves("max_pool2d.default", "maximum over windows")
def max_pool2d(
    a: Algebra[V],
    self: V,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    ceil_mode: bool = False,
) -> V:
    """[…,h,w] gives […,h',w']; NaN where a window holds one."""
    plane = _plane(self, kernel_size, stride, padding, dilation, ceil_mode)
    seen = _windows(a, self, plane, -math.inf)
    return a.max(seen, (len(seen.shape) - 2, len(seen.shape) - 1))


@FAMILY.moves("max_pool2d_with_indices.default", "maximum over windows, and where")
def max_pool2d_with_indices(
    a: Algebra[V],
    self: V,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0, 0),
    dilation: Ints = (1, 1),
    ceil_mode: bool = False,
) -> tuple[V, V]:
    """The maxima, and as I64 the place h·width + w of the first maximum of each window."""
    plane = _plane(self, kernel_size, stride, padding, dilation, ceil_mode)
    seen = _windows(a, self, plane, -math.inf)
    flat = a.reshape(seen, (*seen.shape[:-2], math.prod(plane.kernel)))
    inside = a.argmax(flat, len(flat.shape) - 1)
    width = plane.kernel[1]
    rows = _places(a, inside, plane, 0, a.floor_divide(inside, width))
    columns = _places(a, inside, plane, 1, a.remainder(inside, width))
    return a.max(flat, (len(flat.shape) - 1,)), a.add(a.mul(rows, plane.inputs[1]), columns)


@FAMILY.accumulates("max_pool2d_with_indices_backward.default", "each gradient added where its maximum was")
def max_pool2d_with_indices_backward(
    a: Algebra[V],
    grad_output: V,
    self: V,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    indices: V,
) -> V:
    """The gradient by `self`; an index outside its own window adds nothing."""
    plane = _plane(self, kernel_size, stride, padding, dilation, ceil_mode)
    _check_results(grad_output, self, plane)
    _check_results(indices, self, plane)
    if indices.dtype != "I64":
        raise MalformedError(f"indices in {indices.dtype}, not I64")
    here = a.reshape(a.iota((math.prod(plane.inputs),), 0, "I64"), (*plane.inputs, 1, 1))
    chosen = a.compare(_seen_from(a, indices, plane, -1), here, "eq")
    seen = _seen_from(a, grad_output, plane, 0)
    return a.sum(a.where(chosen, seen, 0), (len(seen.shape) - 2, len(seen.shape) - 1))


@FAMILY.accumulates("avg_pool2d.default", "mean over windows")
def avg_pool2d(
    a: Algebra[V],
    self: V,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> V:
    """[…,h,w] gives […,h',w']; padding counts as zeros, or not at all."""
    plane = _plane(self, kernel_size, stride, padding, (1,), ceil_mode)
    x = a.wide(self)
    total = _sum_of_last_two(a, _windows(a, x, plane, 0))
    return a.cast(a.div(total, _divisor(a, x, plane, count_include_pad, divisor_override)), self.dtype)


@FAMILY.accumulates("avg_pool2d_backward.default", "each gradient shared out over its window")
def avg_pool2d_backward(
    a: Algebra[V],
    grad_output: V,
    self: V,
    kernel_size: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> V:
    """The gradient by `self`; kernels add shares in the type of `self`."""
    plane = _plane(self, kernel_size, stride, padding, (1,), ceil_mode)
    _check_results(grad_output, self, plane)
    share = a.div(grad_output, _divisor(a, grad_output, plane, count_include_pad, divisor_override))
    return _sum_of_last_two(a, _seen_from(a, share, plane, 0))


@FAMILY.accumulates(
    "adaptive_avg_pool2d.default _adaptive_avg_pool2d.default", "mean over as many regions as asked for"
)
def adaptive_avg_pool2d(a: Algebra[V], self: V, output_size: Ints) -> V:
    """Region i of a side is ⌊i·side/count⌋ … ⌈(i+1)·side/count⌉ − 1; divided by height, then by width."""
    _check_plane(self)
    results = sides(output_size, 2, "output size", 1)
    x = a.wide(self)
    mean = _sum_of_last_two(a, _regions(a, x, results))
    for axis, side, count in zip((0, 1), self.shape[-2:], results, strict=True):
        mean = a.div(mean, _region_sizes(a, x.dtype, side, count, axis))
    return a.cast(mean, self.dtype)


@FAMILY.accumulates("_adaptive_avg_pool2d_backward.default", "each gradient shared out over its region")
def adaptive_avg_pool2d_backward(a: Algebra[V], grad_output: V, self: V) -> V:
    """The regions that hold place i are region i with sides and counts exchanged."""
    _check_plane(self)
    _check_plane(grad_output)
    if grad_output.shape[:-2] != self.shape[:-2] or grad_output.dtype != self.dtype:
        raise MalformedError(f"a gradient of shape {list(grad_output.shape)} for a plane {list(self.shape)}")
    share = grad_output
    for axis, side, count in zip((0, 1), self.shape[-2:], grad_output.shape[-2:], strict=True):
        share = a.div(share, _region_sizes(a, share.dtype, side, count, axis))
    return _sum_of_last_two(a, _regions(a, share, self.shape[-2:]))


# ---- windows


def _plane(x: Typed, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool) -> _Plane:
    _check_plane(x)
    kernel = sides(kernel, 2, "kernel", 1)
    strides = sides(stride, 2, "stride", 1) if stride else kernel
    zeros, dilations = sides(padding, 2, "padding", 0), sides(dilation, 2, "dilation", 1)
    if any(2 * low > side for low, side in zip(zeros, kernel, strict=True)):
        raise MalformedError(f"padding {list(zeros)} beyond half the kernel {list(kernel)}")
    axes = zip(x.shape[-2:], kernel, strides, zeros, dilations, strict=True)
    results = tuple(_positions(*axis, ceil_mode) for axis in axes)
    return _Plane(x.shape[-2:], results, kernel, strides, zeros, dilations)


def _positions(length: int, kernel: int, step: int, low: int, dilation: int, ceil_mode: bool) -> int:
    free = length + 2 * low - dilation * (kernel - 1) - 1
    count = (free + (step - 1 if ceil_mode else 0)) // step + 1
    if ceil_mode and (count - 1) * step >= length + low:
        count -= 1
    if count < 1:
        raise MalformedError(f"a side of {length} holds no window of {kernel}")
    return count


def _windows(a: Algebra[V], x: V, plane: _Plane, number: float) -> V:
    """[…,h',w',kernel height,kernel width]."""
    front, first = (0,) * (len(x.shape) - 2), len(x.shape) - 2
    padded = a.pad(x, number, (*front, *plane.padding), (*front, *plane.high), (*front, 0, 0))
    return a.windows(padded, (first, first + 1), plane.kernel, plane.strides, plane.dilations)


def _seen_from(a: Algebra[V], results: V, plane: _Plane, number: int) -> V:
    """[…,h,w,kernel height,kernel width]: for each place the results whose windows hold it, `number` where none do."""
    front, first = (0,) * (len(results.shape) - 2), len(results.shape) - 2
    reach = [dilation * (side - 1) for dilation, side in zip(plane.dilations, plane.kernel, strict=True)]
    low = [span - zeros for span, zeros in zip(reach, plane.padding, strict=True)]
    high = [span - behind for span, behind in zip(reach, plane.high, strict=True)]
    between = [step - 1 for step in plane.strides]
    padded = a.pad(results, number, (*front, *low), (*front, *high), (*front, *between))
    return a.windows(padded, (first, first + 1), plane.kernel, (1, 1), plane.dilations)


def _places(a: Algebra[V], inside: V, plane: _Plane, axis: int, offsets: V) -> V:
    """Along one axis of the plane, where `offsets` into each window point; padding is never the place."""
    shape = [1, 1]
    shape[axis] = plane.results[axis]
    first = a.reshape(a.iota((plane.results[axis],), 0, "I64"), shape)
    start = a.sub(a.mul(first, plane.strides[axis]), plane.padding[axis])
    place = a.add(start, a.mul(offsets, plane.dilations[axis]))
    return a.minimum(a.maximum(place, 0), plane.inputs[axis] - 1)


def _divisor(a: Algebra[V], x: Typed, plane: _Plane, count_padding: bool, override: int | None) -> V:
    """How many elements each window counts, as `x.dtype`."""
    if override is not None:
        if override == 0:
            raise MalformedError("a mean is divided by 0")
        return a.full(plane.results, override, x.dtype)
    ones, low = a.full(plane.inputs, 1, "I64"), plane.padding
    if count_padding:
        ones, low = a.pad(ones, 1, plane.padding, plane.padding, (0, 0)), (0, 0)
    behind = [more - (zeros if count_padding else 0) for more, zeros in zip(plane.high, plane.padding, strict=True)]
    padded = a.pad(ones, 0, low, behind, (0, 0))
    counts = a.sum(a.windows(padded, (0, 1), plane.kernel, plane.strides, (1, 1)), (2, 3))
    return a.cast(counts, x.dtype)


# ---- regions


def _regions(a: Algebra[V], x: V, counts: Ints) -> V:
    """[…,counts,height,width]: the elements of each region, with zeros behind."""
    first = len(x.shape) - 2
    rows, in_rows = _region(a, x.shape[-2], counts[0])
    columns, in_columns = _region(a, x.shape[-1], counts[1])
    height, width = rows.shape[1], columns.shape[1]
    down, across = (counts[0], 1, height, 1), (1, counts[1], 1, width)
    taken = a.take(x, [a.reshape(rows, down), a.reshape(columns, across)], first)
    inside = a.logical_and(a.reshape(in_rows, down), a.reshape(in_columns, across))
    return a.where(inside, taken, 0)


def _region(a: Algebra[V], side: int, count: int) -> tuple[V, V]:
    """For each region along a side its indices, and which of them are its own."""
    longest = min(-(-side // count) + 1, side)
    starts, stops = _region_edges(a, side, count)
    indices = a.add(a.reshape(starts, (count, 1)), a.iota((count, longest), 1, "I64"))
    return a.minimum(indices, side - 1), a.compare(indices, a.reshape(stops, (count, 1)), "lt")


def _region_sizes(a: Algebra[V], dtype: str, side: int, count: int, axis: int) -> V:
    starts, stops = _region_edges(a, side, count)
    return a.cast(a.reshape(a.sub(stops, starts), (1, count) if axis else (count, 1)), dtype)


def _region_edges(a: Algebra[V], side: int, count: int) -> tuple[V, V]:
    scaled = a.mul(a.iota((count,), 0, "I64"), side)
    return a.floor_divide(scaled, count), a.floor_divide(a.add(scaled, side + count - 1), count)


# ---- checks


def _sum_of_last_two(a: Algebra[V], x: V) -> V:
    return a.sum(x, (len(x.shape) - 2, len(x.shape) - 1))


def _check_plane(x: Typed) -> None:
    if len(x.shape) not in (3, 4) or x.dtype not in FLOATS or 0 in x.shape[-2:]:
        raise MalformedError(f"{x.dtype}{list(x.shape)} where planes of floats are needed")


def _check_results(x: Typed, self: Typed, plane: _Plane) -> None:
    if x.shape != (*self.shape[:-2], *plane.results):
        raise MalformedError(f"shape {list(x.shape)} where {[*self.shape[:-2], *plane.results]} is needed")


# Nearest-neighbour resampling of lines and planes, and its gradient.
#
# Kernels compute the source of place i as ⌊i·scale⌋ in F32. A definition must not depend on how a product rounds. So
# the sources are exact quotients ⌊i·p/q⌋, and sizes for which no such quotient agrees with F32 are refused.

Scales = tuple[float | None, ...]

SIDE_MAX: Final = 1 << 16
_DENOMINATOR_MAX: Final = 1000


@FAMILY.moves("upsample_nearest1d.default", "nearest neighbours along a line")
def upsample_nearest1d(a: Algebra[V], self: V, output_size: Ints, scales: float | None = None) -> V:
    """[n,c,w] gives [n,c,w']."""
    return _resample(a, self, output_size, (scales,))


@FAMILY.moves("upsample_nearest2d.default", "nearest neighbours in a plane")
def upsample_nearest2d(
    a: Algebra[V], self: V, output_size: Ints, scales_h: float | None = None, scales_w: float | None = None
) -> V:
    """[n,c,h,w] gives [n,c,h',w']."""
    return _resample(a, self, output_size, (scales_h, scales_w))


def _add_by_factor(axes: int, where: str) -> None:
    @FAMILY.moves(f"upsample_nearest{axes}d.vec", f"nearest neighbours {where}")
    def by_factor(a: Algebra[V], input: V, output_size: Ints | None, scale_factors: tuple[float, ...] | None) -> V:
        """[n,c,…]: either the sizes are given, or factors, of which the sizes are rounded down."""
        check_rank(input, axes + 2)
        if (output_size is None) == (scale_factors is None):
            raise MalformedError("either output sizes or scale factors are needed")
        if output_size is not None:
            return _resample(a, input, output_size, (None,) * len(output_size))
        factors = scale_factors or ()
        if any(not 0 < factor <= SIDE_MAX for factor in factors) or len(factors) != axes:
            raise MalformedError(f"scale factors {list(factors)[:8]} for {list(input.shape)}")
        sizes = tuple(int(side * factor) for side, factor in zip(input.shape[2:], factors, strict=True))
        return _resample(a, input, sizes, factors)


_add_by_factor(1, "along a line")
_add_by_factor(2, "in a plane")


@FAMILY.accumulates("upsample_nearest2d_backward.default", "each gradient added where its value came from")
def upsample_nearest2d_backward(
    a: Algebra[V],
    grad_output: V,
    output_size: Ints,
    input_size: Ints,
    scales_h: float | None = None,
    scales_w: float | None = None,
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


def _resample(a: Algebra[V], x: V, sizes: Ints, scales: Scales) -> V:
    _check_sizes((*x.shape[:2], *sizes), x.shape, scales)
    ratios = [_ratio(old, new, scale) for old, new, scale in zip(x.shape[2:], sizes, scales, strict=True)]
    return a.take(x, _grid(a, sizes, ratios), 2)


def _grid(a: Algebra[V], sizes: Ints, ratios: list[Fraction]) -> list[V]:
    """For each axis the sources ⌊i·ratio⌋, shaped so that they broadcast together."""
    sources = []
    for axis, (size, ratio) in enumerate(zip(sizes, ratios, strict=True)):
        scaled = a.mul(a.iota((size,), 0, "I64"), ratio.numerator)
        shape = [size if i == axis else 1 for i in range(len(sizes))]
        sources.append(a.reshape(a.floor_divide(scaled, ratio.denominator), shape))
    return sources


def _block_sums(a: Algebra[V], g: V, ratios: list[Fraction]) -> V:
    height, width = (ratio.denominator for ratio in ratios)
    n, c, h, w = g.shape
    return a.sum(a.reshape(g, (n, c, h // height, height, w // width, width)), (3, 5))


def _is_whole(inputs: Ints, sizes: Ints, ratios: list[Fraction]) -> bool:
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


def _check_sizes(results: Ints, inputs: Ints, scales: Scales) -> None:
    sides = (*results[2:], *inputs[2:])
    if len(results) != len(inputs) or len(results) != len(scales) + 2:
        raise MalformedError(f"resampling {list(inputs)[:8]} to {list(results)[:8]}")
    if any(not 1 <= side <= SIDE_MAX for side in sides):
        raise MalformedError(f"resampling sides {list(sides)}, not within 1 … {SIDE_MAX}")
    if any(scale is not None and not 1 / SIDE_MAX <= scale <= SIDE_MAX for scale in scales):
        raise MalformedError(f"resampling by {list(scales)}")

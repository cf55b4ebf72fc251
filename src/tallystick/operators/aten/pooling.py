"""Maxima and means over windows of a plane, and their gradients.

Planes are the last two axes; what stands before them is kept. A window that `ceil_mode` lets stick out of the padded
plane begins inside it (PyTorch, `pooling_output_shape`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, Typed, V
from tallystick.operators.aten.convolution import sides
from tallystick.operators.definition import Exactness, Family
from tallystick.operators.shapes import FLOATS

FAMILY: Final = Family()

Sides = tuple[int, ...]

_MAX: Final = (
    "Tensor self, int[] kernel_size, int[] stride=[], int[] padding=[0, 0], int[] dilation=[1, 1], bool ceil_mode=False"
)
_MEAN: Final = "int[] kernel_size, int[] stride{}, int[] padding{}, bool ceil_mode{}, bool count_include_pad{}"


@dataclass(frozen=True)
class Plane:
    """Windows over a plane of `inputs`, one result per position: everything but the values."""

    inputs: Sides
    results: Sides
    kernel: Sides
    strides: Sides
    padding: Sides
    dilations: Sides

    @property
    def high(self) -> Sides:
        """What is padded, or cropped, behind, so that the windows end with the plane."""
        spans = zip(self.results, self.kernel, self.strides, self.dilations, self.padding, self.inputs, strict=True)
        return tuple(
            (count - 1) * step + (side - 1) * dilation + 1 - low - length
            for count, side, step, dilation, low, length in spans
        )


@FAMILY.operator("aten.max_pool2d.default", _MAX, "maximum over windows", Exactness.MOVES)
def max_pool2d(
    a: Algebra[V],
    self: V,
    kernel_size: Sides,
    stride: Sides,
    padding: Sides,
    dilation: Sides,
    ceil_mode: bool,
) -> V:
    """[…,h,w] gives […,h',w']; NaN where a window holds one."""
    plane = _plane(self, kernel_size, stride, padding, dilation, ceil_mode)
    seen = _windows(a, self, plane, -math.inf)
    return a.max(seen, (len(seen.shape) - 2, len(seen.shape) - 1))


@FAMILY.operator("aten.max_pool2d_with_indices.default", _MAX, "maximum over windows, and where", Exactness.MOVES)
def max_pool2d_with_indices(
    a: Algebra[V],
    self: V,
    kernel_size: Sides,
    stride: Sides,
    padding: Sides,
    dilation: Sides,
    ceil_mode: bool,
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


@FAMILY.operator(
    "aten.max_pool2d_with_indices_backward.default",
    "Tensor grad_output, Tensor self, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode, "
    "Tensor indices",
    "each gradient added where its maximum was",
    Exactness.ACCUMULATES,
)
def max_pool2d_with_indices_backward(
    a: Algebra[V],
    grad_output: V,
    self: V,
    kernel_size: Sides,
    stride: Sides,
    padding: Sides,
    dilation: Sides,
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


@FAMILY.operator(
    "aten.avg_pool2d.default",
    f"Tensor self, {_MEAN.format('=[]', '=[0, 0]', '=False', '=True')}, int? divisor_override=None",
    "mean over windows",
    Exactness.ACCUMULATES,
)
def avg_pool2d(
    a: Algebra[V],
    self: V,
    kernel_size: Sides,
    stride: Sides,
    padding: Sides,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> V:
    """[…,h,w] gives […,h',w']; padding counts as zeros, or not at all."""
    plane = _plane(self, kernel_size, stride, padding, (1,), ceil_mode)
    x = a.wide(self)
    total = _sum_of_last_two(a, _windows(a, x, plane, 0))
    return a.cast(a.div(total, _divisor(a, x, plane, count_include_pad, divisor_override)), self.dtype)


@FAMILY.operator(
    "aten.avg_pool2d_backward.default",
    f"Tensor grad_output, Tensor self, {_MEAN.format('', '', '', '')}, int? divisor_override",
    "each gradient shared out over its window",
    Exactness.ACCUMULATES,
)
def avg_pool2d_backward(
    a: Algebra[V],
    grad_output: V,
    self: V,
    kernel_size: Sides,
    stride: Sides,
    padding: Sides,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> V:
    """The gradient by `self`; kernels add shares in the type of `self`."""
    plane = _plane(self, kernel_size, stride, padding, (1,), ceil_mode)
    _check_results(grad_output, self, plane)
    share = a.div(grad_output, _divisor(a, grad_output, plane, count_include_pad, divisor_override))
    return _sum_of_last_two(a, _seen_from(a, share, plane, 0))


@FAMILY.operator(
    "aten.adaptive_avg_pool2d.default",
    "Tensor self, int[] output_size",
    "mean over as many regions as asked for",
    Exactness.ACCUMULATES,
)
@FAMILY.operator(
    "aten._adaptive_avg_pool2d.default",
    "Tensor self, int[] output_size",
    "mean over as many regions as asked for",
    Exactness.ACCUMULATES,
)
def adaptive_avg_pool2d(a: Algebra[V], self: V, output_size: Sides) -> V:
    """Region i of a side is ⌊i·side/count⌋ … ⌈(i+1)·side/count⌉ − 1; divided by height, then by width."""
    _check_plane(self)
    results = sides(output_size, 2, "output size", 1)
    x = a.wide(self)
    mean = _sum_of_last_two(a, _regions(a, x, results))
    for axis, side, count in zip((0, 1), self.shape[-2:], results, strict=True):
        mean = a.div(mean, _region_sizes(a, x.dtype, side, count, axis))
    return a.cast(mean, self.dtype)


@FAMILY.operator(
    "aten._adaptive_avg_pool2d_backward.default",
    "Tensor grad_output, Tensor self",
    "each gradient shared out over its region",
    Exactness.ACCUMULATES,
)
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


def _plane(x: Typed, kernel: Sides, stride: Sides, padding: Sides, dilation: Sides, ceil_mode: bool) -> Plane:
    _check_plane(x)
    kernel = sides(kernel, 2, "kernel", 1)
    strides = sides(stride, 2, "stride", 1) if stride else kernel
    zeros, dilations = sides(padding, 2, "padding", 0), sides(dilation, 2, "dilation", 1)
    if any(2 * low > side for low, side in zip(zeros, kernel, strict=True)):
        raise MalformedError(f"padding {list(zeros)} beyond half the kernel {list(kernel)}")
    axes = zip(x.shape[-2:], kernel, strides, zeros, dilations, strict=True)
    results = tuple(_positions(*axis, ceil_mode) for axis in axes)
    return Plane(x.shape[-2:], results, kernel, strides, zeros, dilations)


def _positions(length: int, kernel: int, step: int, low: int, dilation: int, ceil_mode: bool) -> int:
    free = length + 2 * low - dilation * (kernel - 1) - 1
    count = (free + (step - 1 if ceil_mode else 0)) // step + 1
    if ceil_mode and (count - 1) * step >= length + low:
        count -= 1
    if count < 1:
        raise MalformedError(f"a side of {length} holds no window of {kernel}")
    return count


def _windows(a: Algebra[V], x: V, plane: Plane, number: float) -> V:
    """[…,h',w',kernel height,kernel width]."""
    front, first = (0,) * (len(x.shape) - 2), len(x.shape) - 2
    padded = a.pad(x, number, (*front, *plane.padding), (*front, *plane.high), (*front, 0, 0))
    return a.windows(padded, (first, first + 1), plane.kernel, plane.strides, plane.dilations)


def _seen_from(a: Algebra[V], results: V, plane: Plane, number: int) -> V:
    """[…,h,w,kernel height,kernel width]: for each place the results whose windows hold it, `number` where none do."""
    front, first = (0,) * (len(results.shape) - 2), len(results.shape) - 2
    reach = [dilation * (side - 1) for dilation, side in zip(plane.dilations, plane.kernel, strict=True)]
    low = [span - zeros for span, zeros in zip(reach, plane.padding, strict=True)]
    high = [span - behind for span, behind in zip(reach, plane.high, strict=True)]
    between = [step - 1 for step in plane.strides]
    padded = a.pad(results, number, (*front, *low), (*front, *high), (*front, *between))
    return a.windows(padded, (first, first + 1), plane.kernel, (1, 1), plane.dilations)


def _places(a: Algebra[V], inside: V, plane: Plane, axis: int, offsets: V) -> V:
    """Along one axis of the plane, where `offsets` into each window point; padding is never the place."""
    shape = [1, 1]
    shape[axis] = plane.results[axis]
    first = a.reshape(a.iota((plane.results[axis],), 0, "I64"), shape)
    start = a.sub(a.mul(first, plane.strides[axis]), plane.padding[axis])
    found = a.add(start, a.mul(offsets, plane.dilations[axis]))
    return a.minimum(a.maximum(found, 0), plane.inputs[axis] - 1)


def _divisor(a: Algebra[V], x: Typed, plane: Plane, count_padding: bool, override: int | None) -> V:
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


def _regions(a: Algebra[V], x: V, counts: Sides) -> V:
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


def _check_results(x: Typed, self: Typed, plane: Plane) -> None:
    if x.shape != (*self.shape[:-2], *plane.results):
        raise MalformedError(f"shape {list(x.shape)} where {[*self.shape[:-2], *plane.results]} is needed")

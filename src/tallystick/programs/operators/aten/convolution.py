"""Convolutions of any rank, transposed ones, and their gradients.

A convolution is a sum of products over channels and window positions (Dumoulin & Visin 2016, arXiv:1603.07285, §2 and
§4 for transposed ones), taken in any order. Kernels that transform their operands (Winograd, Fourier) are another
formula and outside its bound.

On CPUs without units for 16-bit floats, PyTorch multiplies matrices of columns (`slow_conv…`). A transposed convolution
then rounds the product of each kernel place to 16 bits and adds these in 16 bits; gradients of weights are added over
the examples in 16 bits. `short` counts these roundings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, Typed, V
from tallystick.programs.operators.aten.contraction import check_rank, optional, summand, widened
from tallystick.programs.operators.definition import Family, Ints

FAMILY: Final = Family("aten")


@dataclass(frozen=True)
class _Geometry:
    """One number per spatial axis of each: strides, zeros in front and behind, dilations; and the groups."""

    strides: Ints
    low: Ints
    high: Ints
    dilations: Ints
    groups: int

    def reach(self, kernel: Ints) -> Ints:
        """How many elements a window spans, less one."""
        return tuple(dilation * (side - 1) for dilation, side in zip(self.dilations, kernel, strict=True))


@FAMILY.accumulates("convolution.default", "convolution, or its transpose, plus bias")
def convolution(
    a: Algebra[V],
    input: V,
    weight: V,
    bias: V | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> V:
    """[n,c,…] and [o,c/groups,…] give [n,o,…]; transposed, [n,c,…] and [c,o/groups,…] do."""
    geometry = _geometry(input, weight, stride, padding, dilation, groups)
    extra = sides(output_padding, len(input.shape) - 2, "output padding", 0)
    if not transposed and any(extra):
        raise MalformedError("output padding belongs to transposed convolutions")
    x, w, *addends = widened(a, input, weight, *optional(bias))
    result = _spread(a, x, w, geometry, extra) if transposed else _gather(a, x, w, geometry)
    terms = math.prod(weight.shape[2:]) * (weight.shape[0] // groups if transposed else weight.shape[1])
    return a.cast(_biased(a, result, addends, terms), input.dtype)


@FAMILY.accumulates("convolution_backward.default", "gradients of a convolution by input, weight and bias")
def convolution_backward(
    a: Algebra[V],
    grad_output: V,
    input: V,
    weight: V,
    bias_sizes: Ints | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[V | None, V | None, V | None]:
    """Gradients that `output_mask` leaves out are `None`; `bias_sizes` says nothing that the shapes do not."""
    wanted = masked(output_mask, 3)
    geometry = _geometry(input, weight, stride, padding, dilation, groups)
    g, x, w = widened(a, grad_output, input, weight)
    _check_gradient(g, x, w, geometry, transposed, sides(output_padding, len(x.shape) - 2, "output padding", 0))
    by_input = by_weight = by_bias = None
    if wanted[0]:
        by_input = a.cast(_by_input(a, g, x, w, geometry, transposed), input.dtype)
    if wanted[1]:
        outer, inner = (x, g) if transposed else (g, x)
        by_weight = a.cast(_by_weight(a, outer, inner, w.shape, geometry), weight.dtype)
    if wanted[2]:
        by_bias = a.cast(a.sum(g, (0, *range(2, len(g.shape)))), weight.dtype)
    return by_input, by_weight, by_bias


def sides(numbers: Ints, count: int, name: str, least: int) -> Ints:
    """One number per spatial axis; a single number is used for all. Raises `MalformedError` below `least`."""
    spread = numbers * count if len(numbers) == 1 else numbers
    if len(spread) != count or any(number < least for number in spread):
        raise MalformedError(f"{name} {list(numbers)[:8]} for {count} axes")
    return spread


def masked(output_mask: tuple[bool, ...], count: int) -> tuple[bool, ...]:
    """The mask itself. Raises `MalformedError` unless it has `count` entries."""
    if len(output_mask) != count:
        raise MalformedError(f"an output mask of {len(output_mask)} entries, not {count}")
    return output_mask


def _geometry(x: Typed, w: Typed, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> _Geometry:
    count = len(x.shape) - 2
    if count < 1 or len(w.shape) != count + 2:
        raise MalformedError(f"a convolution of {len(x.shape)} axes with {len(w.shape)} axes of weights")
    if groups < 1 or w.shape[0] % groups or x.shape[1] % groups:
        raise MalformedError(f"{x.shape[1]} channels and weights {list(w.shape)} in {groups} groups")
    zeros = sides(padding, count, "padding", 0)
    strides, dilations = sides(stride, count, "stride", 1), sides(dilation, count, "dilation", 1)
    return _Geometry(strides, zeros, zeros, dilations, groups)


def _gather(a: Algebra[V], x: V, w: V, geometry: _Geometry) -> V:
    """Σ x[n, c, p·stride + k·dilation − low] · w[o, c, k] over c and k."""
    padded = a.pad(x, 0, (0, 0, *geometry.low), (0, 0, *geometry.high), (0,) * len(x.shape))
    return _correlate(a, padded, w, geometry.strides, geometry.dilations, geometry.groups)


def _spread(a: Algebra[V], x: V, w: V, geometry: _Geometry, extra: Ints) -> V:
    """The transpose of `_gather`: zeros between the elements, then a convolution with the mirrored kernel."""
    reach = geometry.reach(w.shape[2:])
    low = [side - zeros for side, zeros in zip(reach, geometry.low, strict=True)]
    high = [side - zeros + more for side, zeros, more in zip(reach, geometry.high, extra, strict=True)]
    between = [step - 1 for step in geometry.strides]
    padded = a.pad(x, 0, (0, 0, *low), (0, 0, *high), (0, 0, *between))
    mirrored = _exchanged(a, a.flip(w, tuple(range(2, len(w.shape)))), geometry.groups)
    places = math.prod(w.shape[2:])
    return _correlate(a, padded, mirrored, (1,) * len(reach), geometry.dilations, geometry.groups, places + 1)


def _exchanged(a: Algebra[V], w: V, groups: int) -> V:
    """[c, o/groups, …] becomes [o, c/groups, …]."""
    grouped = a.reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))
    swapped = a.transpose(grouped, (0, 2, 1, *range(3, len(grouped.shape))))
    return a.reshape(swapped, (groups * w.shape[1], w.shape[0] // groups, *w.shape[2:]))


def _correlate(a: Algebra[V], x: V, w: V, strides: Ints, dilations: Ints, groups: int, short: int = 0) -> V:
    spatial, kernel = len(x.shape) - 2, w.shape[2:]
    grouped = a.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    seen = a.windows(grouped, tuple(range(3, 3 + spatial)), kernel, strides, dilations)
    weights = a.reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))
    summed = (2, *range(3 + spatial, 3 + 2 * spatial)), tuple(range(2, 3 + spatial))
    result = a.dot(seen, weights, summed, ((1,), (0,)), short)
    first = a.transpose(result, (1, 0, 2 + spatial, *range(2, 2 + spatial)))
    return a.reshape(first, (x.shape[0], w.shape[0], *first.shape[3:]))


def _biased(a: Algebra[V], result: V, addends: list[V], terms: int) -> V:
    for bias in addends:
        check_rank(bias, 1)
        column = a.reshape(summand(a, bias, terms), (*bias.shape, *(1,) * (len(result.shape) - 2)))
        result = a.add(a.broadcast(column, result.shape), result)
    return result


def _by_input(a: Algebra[V], g: V, x: V, w: V, geometry: _Geometry, transposed: bool) -> V:
    if transposed:
        return _gather(a, g, w, geometry)
    reach = geometry.reach(w.shape[2:])
    unread = [
        (side + below + above - span - 1) % step
        for side, below, above, span, step in zip(
            x.shape[2:], geometry.low, geometry.high, reach, geometry.strides, strict=True
        )
    ]
    return _spread(a, g, w, geometry, tuple(unread))


def _by_weight(a: Algebra[V], outer: V, inner: V, shape: Ints, geometry: _Geometry) -> V:
    """Σ outer[n, o, p] · inner[n, c, p·stride + k·dilation − low] over n and p."""
    spatial, groups, positions = len(shape) - 2, geometry.groups, outer.shape[2:]
    spans = zip(geometry.reach(shape[2:]), geometry.strides, positions, strict=True)
    read = [reach + step * (count - 1) + 1 for reach, step, count in spans]
    cropped = zip(read, inner.shape[2:], geometry.low, strict=True)
    high = [length - side - below for length, side, below in cropped]
    padded = a.pad(inner, 0, (0, 0, *geometry.low), (0, 0, *high), (0,) * len(shape))
    grouped = a.reshape(padded, (padded.shape[0], groups, padded.shape[1] // groups, *padded.shape[2:]))
    axes = tuple(range(3, 3 + spatial))
    seen = a.windows(grouped, axes, positions, geometry.dilations, geometry.strides)
    outputs = a.reshape(outer, (outer.shape[0], groups, outer.shape[1] // groups, *positions))
    summed = (0, *axes), (0, *range(3 + spatial, 3 + 2 * spatial))
    return a.reshape(a.dot(outputs, seen, summed, ((1,), (1,)), outer.shape[0]), shape)


def _check_gradient(g: Typed, x: Typed, w: Typed, geometry: _Geometry, transposed: bool, extra: Ints) -> None:
    """Raise unless `g` has the shape of the convolution's result."""
    channels = w.shape[1] * geometry.groups if transposed else w.shape[0]
    if x.shape[1] != (w.shape[0] if transposed else w.shape[1] * geometry.groups) or (any(extra) and not transposed):
        raise MalformedError(f"weights {list(w.shape)} for {x.shape[1]} channels in {geometry.groups} groups")
    axes = zip(x.shape[2:], geometry.reach(w.shape[2:]), geometry.low, geometry.strides, extra, strict=True)
    if transposed:
        results = [(side - 1) * step + reach + 1 - 2 * zeros + more for side, reach, zeros, step, more in axes]
    else:
        results = [(side + 2 * zeros - reach - 1) // step + 1 for side, reach, zeros, step, _ in axes]
    if g.shape != (x.shape[0], channels, *results) or min(results) < 1:
        raise MalformedError(f"a gradient of shape {list(g.shape)} where {[x.shape[0], channels, *results]} is needed")


# ---- names by the number of axes


def _add_of_rank(axes: int, along: str) -> None:
    """The convolutions whose weights have `axes` spatial axes."""
    ones, zeros = (1,) * axes, (0,) * axes

    @FAMILY.accumulates(f"conv{axes}d.default", f"convolution along {along}")
    def plain(
        a: Algebra[V],
        input: V,
        weight: V,
        bias: V | None = None,
        stride: Ints = ones,
        padding: Ints = zeros,
        dilation: Ints = ones,
        groups: int = 1,
    ) -> V:
        """[n,c,…] and [o,c/groups,…] give [n,o,…]; an input without n gives a result without n."""
        check_rank(weight, axes + 2)
        batch = a.reshape(input, (1, *input.shape)) if len(input.shape) == axes + 1 else input
        result: V = convolution(a, batch, weight, bias, stride, padding, dilation, False, (0,), groups)
        return result if batch is input else a.reshape(result, result.shape[1:])

    @FAMILY.accumulates(f"conv{axes}d.padding", f"convolution along {along}, padded by name")
    def padded_by_name(
        a: Algebra[V],
        input: V,
        weight: V,
        bias: V | None = None,
        stride: Ints = ones,
        padding: str = "valid",
        dilation: Ints = ones,
        groups: int = 1,
    ) -> V:
        """`valid` pads nothing; `same` keeps the sides, with the odd zero behind, and asks for strides of 1."""
        check_rank(weight, axes + 2)
        geometry = _geometry(input, weight, stride, (0,), dilation, groups)
        if padding == "same" and all(step == 1 for step in geometry.strides):
            reach = geometry.reach(weight.shape[2:])
            low = tuple(side // 2 for side in reach)
            high = tuple(side - side // 2 for side in reach)
            geometry = _Geometry(geometry.strides, low, high, geometry.dilations, groups)
        elif padding != "valid":
            raise MalformedError(f"convolution with padding {padding!r:.20} and strides {list(geometry.strides)}")
        x, w, *addends = widened(a, input, weight, *optional(bias))
        return a.cast(_biased(a, _gather(a, x, w, geometry), addends, math.prod(weight.shape[1:])), input.dtype)

    overload = "default" if axes == 1 else "input"
    meaning = f"transposed convolution along {along}"

    @FAMILY.accumulates(f"conv_transpose{axes}d.{overload}", meaning)
    def transposed(
        a: Algebra[V],
        input: V,
        weight: V,
        bias: V | None = None,
        stride: Ints = ones,
        padding: Ints = zeros,
        output_padding: Ints = zeros,
        groups: int = 1,
        dilation: Ints = ones,
    ) -> V:
        """[n,c,…] and [c,o/groups,…] give [n,o,…]."""
        check_rank(weight, axes + 2)
        result: V = convolution(a, input, weight, bias, stride, padding, dilation, True, output_padding, groups)
        return result


_add_of_rank(1, "one axis")
_add_of_rank(2, "two axes")
_add_of_rank(3, "three axes")

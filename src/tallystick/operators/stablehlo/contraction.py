"""Sums of products: dot_general and convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallystick.operators.algebra import Algebra, V
from tallystick.operators.definition import Exactness, Family
from tallystick.operators.stablehlo.arguments import (
    FLOATS,
    PRECISIONS,
    distinct_axes,
    one_dtype,
    per_axis,
    positive,
    require,
)
from tallystick.operators.stablehlo.reduction import windows_of
from tallystick.tensors.dtypes import item_size

FAMILY = Family()

CONVOLUTION: Final = (
    "Tensor lhs, Tensor rhs, int[] window_strides, int[] padding_low, int[] padding_high, int[] lhs_dilation, "
    "int[] rhs_dilation, int[] window_reversal, int[] lhs_layout, int[] rhs_layout, int[] output_layout, "
    "int feature_group_count, int batch_group_count, str precision, dtype dtype"
)


@FAMILY.operator(
    "stablehlo.dot_general",
    "Tensor lhs, Tensor rhs, int[] lhs_batching_dimensions, int[] rhs_batching_dimensions, "
    "int[] lhs_contracting_dimensions, int[] rhs_contracting_dimensions, str precision, dtype dtype",
    "Σ x·y over the contracting axes",
    Exactness.ACCUMULATES,
)
def dot_general(
    a: Algebra[V],
    lhs: V,
    rhs: V,
    lhs_batching_dimensions: Sequence[int],
    rhs_batching_dimensions: Sequence[int],
    lhs_contracting_dimensions: Sequence[int],
    rhs_contracting_dimensions: Sequence[int],
    precision: str,
    dtype: str,
) -> V:
    """§dot_general; `precision` is what the program asks of hardware that has faster, coarser products."""
    _check_products(lhs, rhs, precision, dtype)
    distinct_axes((*lhs_batching_dimensions, *lhs_contracting_dimensions), len(lhs.shape))
    distinct_axes((*rhs_batching_dimensions, *rhs_contracting_dimensions), len(rhs.shape))
    per_axis(len(lhs_batching_dimensions), rhs_batching_dimensions=rhs_batching_dimensions)
    per_axis(len(lhs_contracting_dimensions), rhs_contracting_dimensions=rhs_contracting_dimensions)
    x, y = _accumulated(a, lhs, dtype), _accumulated(a, rhs, dtype)
    contract = (tuple(lhs_contracting_dimensions), tuple(rhs_contracting_dimensions))
    return a.cast(a.dot(x, y, contract, (tuple(lhs_batching_dimensions), tuple(rhs_batching_dimensions))), dtype)


@FAMILY.operator("stablehlo.convolution", CONVOLUTION, "Σ x·w over windows and features", Exactness.ACCUMULATES)
def convolution(
    a: Algebra[V],
    lhs: V,
    rhs: V,
    window_strides: Sequence[int],
    padding_low: Sequence[int],
    padding_high: Sequence[int],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    window_reversal: Sequence[int],
    lhs_layout: Sequence[int],
    rhs_layout: Sequence[int],
    output_layout: Sequence[int],
    feature_group_count: int,
    batch_group_count: int,
    precision: str,
    dtype: str,
) -> V:
    """§convolution.

    A layout lists axes: batch, feature and spatial ones of the input and of the output, input feature, output
    feature and spatial ones of the kernel. `window_reversal` lists the spatial axes along which the kernel is reversed.
    """
    _check_products(lhs, rhs, precision, dtype)
    sides = len(lhs.shape)
    for layout, shape in ((lhs_layout, lhs.shape), (rhs_layout, rhs.shape), (output_layout, lhs.shape)):
        require(len(layout) == len(shape) == sides and sides >= 2, f"layout {list(layout)} of {len(shape)} axes")
        distinct_axes(layout, sides)
    per_axis(sides - 2, strides=window_strides, low=padding_low, high=padding_high, lhs=lhs_dilation, rhs=rhs_dilation)
    positive(strides=window_strides, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation)
    positive(groups=(feature_group_count, batch_group_count))
    distinct_axes(window_reversal, sides - 2)
    x = a.transpose(_accumulated(a, lhs, dtype), lhs_layout)
    kernel = a.transpose(_accumulated(a, rhs, dtype), (rhs_layout[1], rhs_layout[0], *rhs_layout[2:]))
    kernel = a.flip(kernel, tuple(axis + 2 for axis in window_reversal)) if window_reversal else kernel
    none, once = (0, 0), (1, 1)
    interior = [step - 1 for step in lhs_dilation]
    x = a.pad(x, 0, (*none, *padding_low), (*none, *padding_high), (*none, *interior))
    windowed, _ = windows_of(a, x, (*once, *kernel.shape[2:]), (*once, *window_strides), (*once, *rhs_dilation))
    windowed = a.reshape(windowed, (*windowed.shape[:sides], *kernel.shape[2:]))
    result = _grouped(a, windowed, kernel, feature_group_count, batch_group_count)
    order = sorted(range(sides), key=output_layout.__getitem__)
    return a.cast(a.transpose(result, order), dtype)


def _grouped(a: Algebra[V], x: V, kernel: V, feature_groups: int, batch_groups: int) -> V:
    """Batch, output features and places, from `x` (batch, features, places, window) and the kernel."""
    spatial = len(kernel.shape) - 2
    (batch, features), places, window = x.shape[:2], x.shape[2 : 2 + spatial], kernel.shape[2:]
    outputs, inside = kernel.shape[:2]
    require(1 in (feature_groups, batch_groups), "groups of features and of the batch together")
    groups = feature_groups * batch_groups
    require(features == inside * feature_groups, f"{features} features for a kernel of {inside} by {feature_groups}")
    require(batch % batch_groups == 0 and outputs % groups == 0, f"{batch} examples, {outputs} outputs by {groups}")
    per_group = batch // batch_groups
    x = a.reshape(x, (batch_groups, per_group, feature_groups, inside, *places, *window))
    kernel = a.reshape(kernel, (groups, outputs // groups, inside, *window))
    x = a.transpose(x, (0, 2, 1, *range(3, len(x.shape))))
    x = a.reshape(x, (groups, per_group, inside, *places, *window))
    inner = (2, *range(3 + spatial, 3 + 2 * spatial))
    found = a.dot(x, kernel, (inner, (2, *range(3, 3 + spatial))), ((0,), (0,)))
    # group, example, places, output of the group
    ordered = a.transpose(found, (1, 0, 2 + spatial, *range(2, 2 + spatial)))
    return a.reshape(ordered, (per_group, outputs, *places))


def _check_products(lhs: V, rhs: V, precision: str, dtype: str) -> None:
    one_dtype(lhs, rhs)
    require(precision in PRECISIONS, f"precision {precision!r:.40}")
    require((lhs.dtype in FLOATS) == (dtype in FLOATS), f"products of {lhs.dtype} summed as {dtype}")
    require(lhs.dtype != "BOOL" != dtype, "products of BOOL")


def _accumulated(a: Algebra[V], x: V, dtype: str) -> V:
    """`x` in the type in which its products are summed: wide, and no narrower than the result."""
    wide = a.wide(x)
    return a.cast(wide, dtype) if item_size(dtype) > item_size(wide.dtype) else wide

"""Many elements to one: whole axes, windows, dot_general and convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS, item_size
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.definition import Dtype, Family, Ints
from tallystick.programs.operators.stablehlo.arguments import (
    PRECISIONS,
    distinct_axes,
    is_integer,
    one_dtype,
    padded,
    per_axis,
    positive,
    require,
    scalar,
)

FAMILY = Family("stablehlo")

Reduction = Callable[[Any, Any, Any, tuple[int, ...]], Any]

REDUCERS: Final[dict[str, Reduction]] = {
    "add": lambda a, x, init, axes: a.add(a.sum(x, axes), init),
    "multiply": lambda a, x, init, axes: a.mul(a.prod(x, axes), init),
    "maximum": lambda a, x, init, axes: a.maximum(a.max(x, axes), init),
    "minimum": lambda a, x, init, axes: a.minimum(a.min(x, axes), init),
    "or": lambda a, x, init, axes: a.logical_or(a.max(x, axes), init),
    "and": lambda a, x, init, axes: a.logical_and(a.min(x, axes), init),
}
CHOICES: Final = ("argmax", "argmin")


@FAMILY.accumulates(
    "reduce", "axes combined by add, multiply, maximum, minimum, and, or; argmax, argmin of (values, indices)"
)
def reduce(
    a: Algebra[V], inputs: Sequence[V], init_values: Sequence[V], dimensions: Ints, reducer: str
) -> tuple[V, ...]:
    """§reduce with a known body, in the dtype of the operands: the order of combination is free."""
    count = 2 if reducer in CHOICES else 1
    require(len(inputs) == len(init_values) == count, f"reducer {reducer!r:.40} of {len(inputs)} tensors")
    scalar(*init_values)
    for tensor, init in zip(inputs, init_values, strict=True):
        one_dtype(tensor, init)
        require(tensor.shape == inputs[0].shape, "the tensors differ in shape")
    distinct_axes(dimensions, len(inputs[0].shape))
    axes = tuple(sorted(dimensions))
    if reducer in CHOICES:
        return _chosen(a, inputs, init_values, axes, reducer)
    return (_reduced(a, inputs[0], init_values[0], axes, reducer),)


@FAMILY.accumulates("reduce_window", "windows combined by add, multiply, maximum, minimum, and, or")
def reduce_window(
    a: Algebra[V],
    operand: V,
    init_value: V,
    window_dimensions: Ints,
    window_strides: Ints,
    base_dilations: Ints,
    window_dilations: Ints,
    padding_low: Ints,
    padding_high: Ints,
    reducer: str,
) -> V:
    """§reduce_window with a known body; what is padded counts as the initial value."""
    one_dtype(operand, init_value)
    scalar(init_value)
    sizes = {"dimensions": window_dimensions, "strides": window_strides, "dilations": window_dilations}
    per_axis(len(operand.shape), **sizes, base=base_dilations, low=padding_low, high=padding_high)
    positive(**sizes, base=base_dilations)
    steps = (*window_strides, *base_dilations, *window_dilations)
    axis = _running_axis(operand.shape, window_dimensions, steps, padding_low, padding_high)
    if axis is not None and reducer == "add" and operand.dtype != "BOOL":
        return a.add(a.cumsum(operand, axis), init_value)
    grown = padded(a, operand, init_value, padding_low, padding_high, [step - 1 for step in base_dilations])
    windowed, tail = windows_of(a, grown, window_dimensions, window_strides, window_dilations)
    return _reduced(a, windowed, init_value, tail, reducer)


@FAMILY.accumulates(
    "select_and_scatter", "each source added where its window has its first maximum (GE) or minimum (LE)"
)
def select_and_scatter(
    a: Algebra[V],
    operand: V,
    source: V,
    init_value: V,
    window_dimensions: Ints,
    window_strides: Ints,
    padding_low: Ints,
    padding_high: Ints,
    select: str,
    scatter: str,
) -> V:
    """§select_and_scatter as gradients of pooling have it: `select` is GE or LE, `scatter` is add."""
    one_dtype(operand, source, init_value)
    scalar(init_value)
    per_axis(len(operand.shape), dimensions=window_dimensions, strides=window_strides, low=padding_low)
    per_axis(len(operand.shape), high=padding_high)
    positive(dimensions=window_dimensions, strides=window_strides)
    require(select in {"GE", "LE"} and scatter == "add", f"select {select!r:.20}, scatter {scatter!r:.20}")
    require(operand.dtype in FLOATS, f"stablehlo.select_and_scatter of {operand.dtype}")
    signed = operand if select == "GE" else a.neg(operand)
    target = _targets(a, signed, window_dimensions, window_strides, padding_low, padding_high)
    require(target.shape == source.shape, f"{list(source.shape)} sources for {list(target.shape)} windows")
    count = prod(operand.shape)
    zeros = a.full((count + 1,), 0, operand.dtype)
    added = a.scatter(zeros, (_flat(a, target),), 0, _flat(a, source), True)
    inside = a.reshape(a.slice(added, (0,), (count,), (1,)), operand.shape)
    return a.add(inside, init_value)


def windows_of(
    a: Algebra[V], x: V, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[V, tuple[int, ...]]:
    """Windows of `x`, with the axes inside of a window at the end; axes that no window covers stay."""
    for size, dilation, side in zip(sizes, dilations, x.shape, strict=True):
        require(dilation * (size - 1) < side, f"a window of {size} by {dilation} in a side of {side}")
    axes = tuple(i for i in range(len(sizes)) if (sizes[i], strides[i]) != (1, 1))
    if not axes:
        return x, ()
    windows = a.windows(x, axes, [sizes[i] for i in axes], [strides[i] for i in axes], [dilations[i] for i in axes])
    return windows, tuple(range(len(x.shape), len(x.shape) + len(axes)))


def _reduced(a: Algebra[V], x: V, init: V, axes: tuple[int, ...], reducer: str) -> V:
    if reducer not in REDUCERS:
        raise MalformedError(f"reducer {reducer!r:.40}")
    if x.dtype == "BOOL":
        reducer = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}.get(reducer, reducer)
    require((reducer in {"or", "and"}) == (x.dtype == "BOOL"), f"reducer {reducer} of {x.dtype}")
    if not axes or (prod(x.shape) == 0 and reducer not in {"add", "multiply"}):
        # No axis: the elements, as initial values are identities (XLA leaves them out). No element: the initial value.
        return a.broadcast(init, [side for axis, side in enumerate(x.shape) if axis not in axes]) if axes else x
    result: V = REDUCERS[reducer](a, x, init, axes)
    return result


def _chosen(a: Algebra[V], inputs: Sequence[V], inits: Sequence[V], axes: tuple[int, ...], reducer: str) -> tuple[V, V]:
    """The greatest (or smallest) value, the first NaN before all, and the lowest of the indices that have it."""
    (values, indices), (value_init, index_init) = inputs, inits
    require(is_integer(indices.dtype), f"indices of {indices.dtype}")
    require(is_integer(values.dtype) or values.dtype in FLOATS, f"{reducer} of {values.dtype}")
    require(len(axes) > 0 and prod(values.shape) > 0, f"{reducer} of no elements")
    over, against = (a.max, a.maximum) if reducer == "argmax" else (a.min, a.minimum)
    best = against(over(values, axes, keep=True), value_init)
    last = a.max(indices, axes, keep=True)
    candidates = a.where(_matches(a, values, best), indices, last)
    lowest = a.min(candidates, axes, keep=True)
    at_init = _matches(a, a.broadcast(value_init, best.shape), best)
    from_init = a.minimum(lowest, index_init)
    shape = [side for axis, side in enumerate(values.shape) if axis not in axes]
    return a.reshape(best, shape), a.reshape(a.where(at_init, from_init, lowest), shape)


def _matches(a: Algebra[V], x: V, best: V) -> V:
    return (
        a.logical_or(a.compare(x, best, "eq"), a.compare(x, x, "ne")) if x.dtype in FLOATS else a.compare(x, best, "eq")
    )


def _running_axis(
    shape: Sequence[int], sizes: Sequence[int], steps: Sequence[int], low: Sequence[int], high: Sequence[int]
) -> int | None:
    """The axis along which the windows are all prefixes, if that is what they are: a cumulative sum."""
    if {*steps} != {1} or any(high):
        return None
    covered = [axis for axis, size in enumerate(sizes) if size != 1]
    if len(covered) != 1 or sizes[covered[0]] != shape[covered[0]]:
        return None
    expected = [shape[axis] - 1 if axis == covered[0] else 0 for axis in range(len(shape))]
    return covered[0] if list(low) == expected else None


def _targets(
    a: Algebra[V], x: V, sizes: Sequence[int], strides: Sequence[int], low: Sequence[int], high: Sequence[int]
) -> V:
    """For each window the place of its first maximum in row order, behind the last place if that is padding."""
    none, once = [0] * len(sizes), [1] * len(sizes)
    places = a.reshape(a.iota((prod(x.shape),), 0, "I64"), x.shape)
    outside = a.full((), prod(x.shape), "I64")
    grown = a.pad(x, -float("inf"), low, high, none)
    held, tail = windows_of(a, grown, sizes, strides, once)
    where, _ = windows_of(a, padded(a, places, outside, low, high, none), sizes, strides, once)
    if not tail:
        return where
    flat = (*held.shape[: len(sizes)], prod(held.shape[len(sizes) :]))
    first = a.argmax(a.reshape(held, flat), len(sizes), keep=True)
    return a.reshape(a.take_along(a.reshape(where, flat), first, len(sizes)), flat[:-1])


def _flat(a: Algebra[V], x: V) -> V:
    return a.reshape(x, (prod(x.shape),))


# Sums of products: dot_general and convolution.


@FAMILY.accumulates("dot_general", "Σ x·y over the contracting axes")
def dot_general(
    a: Algebra[V],
    lhs: V,
    rhs: V,
    lhs_batching_dimensions: Ints,
    rhs_batching_dimensions: Ints,
    lhs_contracting_dimensions: Ints,
    rhs_contracting_dimensions: Ints,
    precision: str,
    dtype: Dtype,
) -> V:
    """§dot_general; `precision` is what the program asks of hardware that has faster, coarser products."""
    _check_products(lhs, rhs, precision, dtype)
    distinct_axes((*lhs_batching_dimensions, *lhs_contracting_dimensions), len(lhs.shape))
    distinct_axes((*rhs_batching_dimensions, *rhs_contracting_dimensions), len(rhs.shape))
    per_axis(len(lhs_batching_dimensions), rhs_batching_dimensions=rhs_batching_dimensions)
    per_axis(len(lhs_contracting_dimensions), rhs_contracting_dimensions=rhs_contracting_dimensions)
    x, y = _accumulated(a, lhs, dtype), _accumulated(a, rhs, dtype)
    contract = (lhs_contracting_dimensions, rhs_contracting_dimensions)
    return a.cast(a.dot(x, y, contract, (lhs_batching_dimensions, rhs_batching_dimensions)), dtype)


@FAMILY.accumulates("convolution", "Σ x·w over windows and features")
def convolution(
    a: Algebra[V],
    lhs: V,
    rhs: V,
    window_strides: Ints,
    padding_low: Ints,
    padding_high: Ints,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    window_reversal: Ints,
    lhs_layout: Ints,
    rhs_layout: Ints,
    output_layout: Ints,
    feature_group_count: int,
    batch_group_count: int,
    precision: str,
    dtype: Dtype,
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
    result = a.dot(x, kernel, (inner, (2, *range(3, 3 + spatial))), ((0,), (0,)))
    # group, example, places, output of the group
    ordered = a.transpose(result, (1, 0, 2 + spatial, *range(2, 2 + spatial)))
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

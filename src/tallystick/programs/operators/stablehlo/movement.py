"""Data that is made, moved, cut and joined."""
# ruff: noqa: D103  (the sections of the specification have the names of the operators)

from __future__ import annotations

from collections.abc import Sequence

from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.definition import Dtype, Family, Ints, Scalar
from tallystick.programs.operators.stablehlo.arguments import (
    distinct_axes,
    index_scalars,
    one_dtype,
    padded,
    per_axis,
    positive,
    require,
    scalar,
)

FAMILY = Family("stablehlo")


@FAMILY.moves("constant", "one number everywhere")
def constant(a: Algebra[V], value: Scalar, shape: Ints, dtype: Dtype) -> V:
    """§constant with one value; a constant with several is a constant of the graph."""
    return a.full(shape, value, dtype)


@FAMILY.moves("iota", "its own index")
def iota(a: Algebra[V], iota_dimension: int, shape: Ints, dtype: Dtype) -> V:
    distinct_axes((iota_dimension,), len(shape))
    return a.iota(shape, iota_dimension, dtype)


@FAMILY.moves("reshape", "the same elements in row order")
def reshape(a: Algebra[V], operand: V, shape: Ints) -> V:
    return a.reshape(operand, shape)


@FAMILY.moves("transpose", "axes permuted")
def transpose(a: Algebra[V], operand: V, permutation: Ints) -> V:
    per_axis(len(operand.shape), permutation=permutation)
    distinct_axes(permutation, len(operand.shape))
    return a.transpose(operand, permutation)


@FAMILY.moves("broadcast_in_dim", "repeated along new axes and along sides of 1")
def broadcast_in_dim(a: Algebra[V], operand: V, broadcast_dimensions: Ints, shape: Ints) -> V:
    """§broadcast_in_dim: axis `i` of the operand becomes axis `broadcast_dimensions[i]`."""
    per_axis(len(operand.shape), broadcast_dimensions=broadcast_dimensions)
    distinct_axes(broadcast_dimensions, len(shape))
    order = sorted(range(len(broadcast_dimensions)), key=broadcast_dimensions.__getitem__)
    moved = operand if order == list(range(len(order))) else a.transpose(operand, order)
    sides = [1] * len(shape)
    for axis, side in zip(broadcast_dimensions, operand.shape, strict=True):
        sides[axis] = side
    return a.broadcast(a.reshape(moved, sides), shape)


@FAMILY.moves("slice", "from start to limit by stride")
def slice_(a: Algebra[V], operand: V, start_indices: Ints, limit_indices: Ints, strides: Ints) -> V:
    per_axis(len(operand.shape), start_indices=start_indices, limit_indices=limit_indices, strides=strides)
    positive(strides=strides)
    for start, limit, side in zip(start_indices, limit_indices, operand.shape, strict=True):
        require(0 <= start <= limit <= side, f"slice {start}:{limit} of a side of {side}")
    return a.slice(operand, start_indices, limit_indices, strides)


@FAMILY.moves("concatenate", "tensors one behind the other")
def concatenate(a: Algebra[V], inputs: Sequence[V], dimension: int) -> V:
    require(len(inputs) > 0, "nothing to concatenate")
    one_dtype(*inputs)
    distinct_axes((dimension,), len(inputs[0].shape))
    return a.concat(inputs, dimension)


@FAMILY.moves("reverse", "reversed along axes")
def reverse(a: Algebra[V], operand: V, dimensions: Ints) -> V:
    distinct_axes(dimensions, len(operand.shape))
    return a.flip(operand, tuple(dimensions))


@FAMILY.moves("pad", "a value before, behind and between the elements")
def pad(
    a: Algebra[V], operand: V, padding_value: V, edge_padding_low: Ints, edge_padding_high: Ints, interior_padding: Ints
) -> V:
    """§pad; negative padding at an edge crops."""
    one_dtype(operand, padding_value)
    scalar(padding_value)
    per_axis(len(operand.shape), low=edge_padding_low, high=edge_padding_high, interior=interior_padding)
    require(all(gap >= 0 for gap in interior_padding), "interior_padding is negative")
    return padded(a, operand, padding_value, edge_padding_low, edge_padding_high, interior_padding)


@FAMILY.moves("dynamic_slice", "a block at a place that is computed")
def dynamic_slice(a: Algebra[V], operand: V, start_indices: Sequence[V], slice_sizes: Ints) -> V:
    """§dynamic_slice; a block that would leave the tensor is moved inside."""
    result = operand
    for axis, places in enumerate(_places(a, operand, start_indices, slice_sizes)):
        result = result if places is None else a.take(result, (places,), axis)
    return result


@FAMILY.moves("dynamic_update_slice", "a block replaced at a place that is computed")
def dynamic_update_slice(a: Algebra[V], operand: V, update: V, start_indices: Sequence[V]) -> V:
    """§dynamic_update_slice; a block that would leave the tensor is moved inside."""
    one_dtype(operand, update)
    per_axis(len(operand.shape), update=update.shape)
    places = _places(a, operand, start_indices, update.shape)
    return _updated(a, operand, update, places, 0)


def _places(a: Algebra[V], operand: V, starts: Sequence[V], sizes: Sequence[int]) -> list[V | None]:
    """For each axis the indices that a block covers; `None` for the whole axis."""
    index_scalars(starts, len(operand.shape))
    per_axis(len(operand.shape), slice_sizes=sizes)
    places: list[V | None] = []
    for start, size, side in zip(starts, sizes, operand.shape, strict=True):
        require(0 <= size <= side, f"a block of {size} in a side of {side}")
        first = a.minimum(a.maximum(a.cast(start, "I64"), 0), side - size)
        places.append(None if size == side else a.add(a.iota((size,), 0, "I64"), first))
    return places


def _updated(a: Algebra[V], x: V, update: V, places: Sequence[V | None], axis: int) -> V:
    """`x` with `update` in its block, from `axis` on; along the axes before both have the same sides."""
    if axis == len(places):
        return update
    here = places[axis]
    if here is None:
        return _updated(a, x, update, places, axis + 1)
    block = _updated(a, a.take(x, (here,), axis), update, places, axis + 1)
    return a.scatter(x, (here,), axis, block, False)

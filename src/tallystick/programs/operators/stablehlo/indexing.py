"""Elements read and written at places that are computed: gather, scatter, sort."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.definition import Family, Ints
from tallystick.programs.operators.stablehlo.arguments import distinct_axes, is_integer, one_dtype, per_axis, require

FAMILY = Family("stablehlo")


class _Blocks(NamedTuple):
    """How gather and scatter address blocks of a tensor: what their two sets of attributes have in common.

    `window` are the axes of the result (or of the updates) inside a block. `dropped` are the axes of the tensor along
    which a block has one element. `batched` are the axes that are paired with the `index_batched` axes of the indices.
    Entry `i` of an index vector is a place along axis `mapped[i]`.
    """

    shape: tuple[int, ...]
    window: tuple[int, ...]
    dropped: tuple[int, ...]
    batched: tuple[int, ...]
    index_batched: tuple[int, ...]
    mapped: tuple[int, ...]
    vector: int
    sizes: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes of the tensor that correspond to the axes inside a block."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in {*self.dropped, *self.batched})

    @property
    def is_rows(self) -> bool:
        """Whether a block is a whole row: one place along one axis, everything along the others."""
        return (
            not self.batched
            and len(self.mapped) == 1
            and self.dropped == self.mapped
            and all(self.sizes[axis] == self.shape[axis] for axis in self.kept)
        )

    @property
    def is_along(self) -> bool:
        """Whether it is one element along the last axis, for each place along the axes before."""
        before = tuple(range(len(self.shape) - 1))
        return self.mapped == self.dropped == (len(before),) and self.batched == self.index_batched == before

    def check(self, indices: V) -> None:
        """Raise `MalformedError` where attributes and indices do not fit together."""
        rank, index_rank = len(self.shape), len(indices.shape)
        require(is_integer(indices.dtype), f"indices of {indices.dtype}")
        per_axis(rank, slice_sizes=self.sizes)
        distinct_axes((*self.dropped, *self.batched), rank)
        distinct_axes((*self.mapped, *self.batched), rank)
        distinct_axes(self.index_batched, index_rank)
        per_axis(len(self.batched), index_batching_dims=self.index_batched)
        require(0 <= self.vector <= index_rank, f"index_vector_dim {self.vector} of {index_rank} axes")
        entries = 1 if self.vector == index_rank else indices.shape[self.vector]
        require(entries == len(self.mapped), f"{entries} entries of an index for {len(self.mapped)} axes")
        require(self.vector not in self.index_batched, "index_vector_dim is a batching axis")
        require(list(self.window) == sorted(set(self.window)), f"window axes {list(self.window)}")
        per_axis(len(self.kept), window_dims=self.window)
        distinct_axes(self.window, len(self.outer(indices)) + len(self.window))
        for axis, (size, side) in enumerate(zip(self.sizes, self.shape, strict=True)):
            single = axis in self.dropped or axis in self.batched
            require(0 <= size <= (min(side, 1) if single else side), f"blocks of {size} in a side of {side}")
        for axis, index_axis in zip(self.batched, self.index_batched, strict=True):
            require(self.shape[axis] == indices.shape[index_axis], "batching axes differ in size")

    def outer(self, indices: V) -> tuple[int, ...]:
        """The sides of the indices without the index vector."""
        return tuple(side for axis, side in enumerate(indices.shape) if axis != self.vector)

    def places(self, indices: V) -> tuple[int, ...]:
        """The axes of the result that come from the indices."""
        rank = len(self.outer(indices)) + len(self.window)
        return tuple(axis for axis in range(rank) if axis not in self.window)

    def result(self, indices: V) -> tuple[int, ...]:
        """The shape of the result, or of the updates."""
        sides = dict(zip(self.places(indices), self.outer(indices), strict=True))
        sides |= {place: self.sizes[axis] for place, axis in zip(self.window, self.kept, strict=True)}
        return tuple(sides[axis] for axis in range(len(sides)))


@FAMILY.moves("gather", "blocks from computed places")
def gather(
    a: Algebra[V],
    operand: V,
    start_indices: V,
    offset_dims: Ints,
    collapsed_slice_dims: Ints,
    operand_batching_dims: Ints,
    start_indices_batching_dims: Ints,
    start_index_map: Ints,
    index_vector_dim: int,
    slice_sizes: Ints,
    indices_are_sorted: bool,
) -> V:
    """§gather; a block that would leave the tensor is moved inside."""
    batched, index_batched = operand_batching_dims, start_indices_batching_dims
    kept = (offset_dims, collapsed_slice_dims, batched, index_batched)
    blocks = _Blocks(operand.shape, *kept, start_index_map, index_vector_dim, slice_sizes)
    blocks.check(start_indices)
    starts = [
        a.minimum(a.maximum(column, 0), operand.shape[axis] - blocks.sizes[axis])
        for axis, column in zip(blocks.mapped, _columns(a, start_indices, blocks), strict=True)
    ]
    if blocks.is_rows and operand.shape[blocks.mapped[0]] > 0:
        return _rows(a, operand, starts[0], blocks)
    if blocks.is_along and len(starts[0].shape) == len(operand.shape):
        return a.take_along(operand, starts[0], len(operand.shape) - 1)
    flat = a.reshape(operand, (prod(operand.shape),))
    return a.take(flat, (_flat_places(a, start_indices, starts, blocks),), 0)


@FAMILY.accumulates("scatter", "blocks added (add) or written (assign)")
def scatter(
    a: Algebra[V],
    input: V,
    scatter_indices: V,
    updates: V,
    update_window_dims: Ints,
    inserted_window_dims: Ints,
    input_batching_dims: Ints,
    scatter_indices_batching_dims: Ints,
    scatter_dims_to_operand_dims: Ints,
    index_vector_dim: int,
    indices_are_sorted: bool,
    unique_indices: bool,
    reducer: str,
) -> V:
    """§scatter in the dtype of the operands; what would be written outside of the tensor is not."""
    one_dtype(input, updates)
    require(reducer in {"add", "assign"}, f"reducer {reducer!r:.40}")
    sizes = _block_sizes(input, updates, update_window_dims, {*inserted_window_dims, *input_batching_dims})
    kept = (update_window_dims, inserted_window_dims, input_batching_dims, scatter_indices_batching_dims)
    blocks = _Blocks(input.shape, *kept, scatter_dims_to_operand_dims, index_vector_dim, sizes)
    blocks.check(scatter_indices)
    expected = blocks.result(scatter_indices)
    require(updates.shape == expected, f"updates {list(updates.shape)} for blocks {list(expected)}")
    starts = _columns(a, scatter_indices, blocks)
    add = reducer == "add" and input.dtype != "BOOL"
    require(add or reducer == "assign", f"reducer {reducer} of {input.dtype}")
    if blocks.is_rows:
        return _rows_written(a, input, starts[0], updates, blocks, add)
    return _written(a, input, _inside_or_last(a, scatter_indices, starts, blocks), updates, add)


@FAMILY.moves("sort", "sorted by the first tensor, ascending (LT) or descending (GT)")
def sort(a: Algebra[V], inputs: Sequence[V], dimension: int, is_stable: bool, comparator: str) -> tuple[V, ...]:
    """§sort by the numbers of the first tensor, all NaN alike and behind; the others are moved along."""
    require(len(inputs) > 0, "nothing to sort")
    require(comparator in {"LT", "GT"}, f"comparator {comparator!r:.40}")
    key, *others = inputs
    distinct_axes((dimension,), len(key.shape))
    require(is_integer(key.dtype) or key.dtype in FLOATS, f"stablehlo.sort of {key.dtype}")
    require(all(other.shape == key.shape for other in others), "the tensors differ in shape")
    values, order = a.sort(key, dimension, comparator == "GT")
    return (values, *(a.take_along(other, order, dimension) for other in others))


def _columns(a: Algebra[V], indices: V, blocks: _Blocks) -> list[V]:
    """One I64 tensor of places for each mapped axis."""
    wide = a.cast(indices, "I64")
    outer = blocks.outer(indices)
    if blocks.vector == len(indices.shape):
        return [wide]
    ends, ones = list(indices.shape), [1] * len(indices.shape)
    columns = []
    for entry in range(len(blocks.mapped)):
        starts = [entry if axis == blocks.vector else 0 for axis in range(len(ends))]
        stops = [entry + 1 if axis == blocks.vector else side for axis, side in enumerate(ends)]
        columns.append(a.reshape(a.slice(wide, starts, stops, ones), outer))
    return columns


def _rows(a: Algebra[V], operand: V, starts: V, blocks: _Blocks) -> V:
    """Whole rows, and their axes brought to the places that the result has for them."""
    axis, count = blocks.mapped[0], len(starts.shape)
    taken = a.take(operand, (starts,), axis)
    return a.transpose(taken, _order(blocks, axis, count))


def _order(blocks: _Blocks, axis: int, count: int) -> list[int]:
    """For each axis of the result, its axis in `take(operand, indices, axis)` with `count` axes of indices."""
    inside = [*range(axis), *range(axis + count, len(blocks.shape) - 1 + count)]
    outside = list(range(axis, axis + count))
    return [
        inside[blocks.window.index(place)] if place in blocks.window else outside.pop(0)
        for place in range(len(inside) + count)
    ]


def _rows_written(a: Algebra[V], x: V, starts: V, updates: V, blocks: _Blocks, add: bool) -> V:
    axis, count = blocks.mapped[0], len(starts.shape)
    side, none = x.shape[axis], [0] * len(x.shape)
    order = _order(blocks, axis, count)
    moved = a.transpose(updates, sorted(range(len(order)), key=order.__getitem__))
    room = a.pad(x, 0, none, [int(i == axis) for i in range(len(none))], none)
    inside = a.logical_and(a.compare(starts, 0, "ge"), a.compare(starts, side, "lt"))
    written = a.scatter(room, (a.where(inside, starts, side),), axis, moved, add)
    return a.slice(written, none, x.shape, [1] * len(none))


def _written(a: Algebra[V], x: V, places: V, updates: V, add: bool) -> V:
    """`x` with `updates` at flat `places`; updates after the last element are dropped."""
    count, total = prod(x.shape), prod(updates.shape)
    room = a.pad(a.reshape(x, (count,)), 0, (0,), (1,), (0,))
    written = a.scatter(room, (a.reshape(places, (total,)),), 0, a.reshape(updates, (total,)), add)
    return a.reshape(a.slice(written, (0,), (count,), (1,)), x.shape)


def _flat_places(a: Algebra[V], indices: V, starts: Sequence[V], blocks: _Blocks) -> V:
    """For each element of the result, its place in the flattened tensor."""
    shape = blocks.result(indices)
    places = a.full(shape, 0, "I64")
    for axis, coordinate in enumerate(_coordinates(a, indices, starts, blocks)):
        places = a.add(places, a.mul(coordinate, prod(blocks.shape[axis + 1 :])))
    return places


def _inside_or_last(a: Algebra[V], indices: V, starts: Sequence[V], blocks: _Blocks) -> V:
    """The flat places, and one behind the last for each element outside of the tensor."""
    shape = blocks.result(indices)
    inside = a.full(shape, 1, "BOOL")
    for side, coordinate in zip(blocks.shape, _coordinates(a, indices, starts, blocks), strict=True):
        inside = a.logical_and(inside, a.compare(coordinate, 0, "ge"))
        inside = a.logical_and(inside, a.compare(coordinate, side, "lt"))
    return a.where(inside, _flat_places(a, indices, starts, blocks), prod(blocks.shape))


def _coordinates(a: Algebra[V], indices: V, starts: Sequence[V], blocks: _Blocks) -> list[V]:
    """For each axis of the tensor a tensor that broadcasts to the result: the place along it."""
    shape, places = blocks.result(indices), blocks.places(indices)
    outer = [shape[place] if place in places else 1 for place in range(len(shape))]
    coordinates = [a.full((1,) * len(shape), 0, "I64") for _ in blocks.shape]
    for axis, start in zip(blocks.mapped, starts, strict=True):
        coordinates[axis] = a.reshape(start, outer)
    for axis, index_axis in zip(blocks.batched, blocks.index_batched, strict=True):
        coordinates[axis] = _ramp(a, shape, places[index_axis - (index_axis > blocks.vector)])
    for place, axis in zip(blocks.window, blocks.kept, strict=True):
        coordinates[axis] = a.add(coordinates[axis], _ramp(a, shape, place))
    return coordinates


def _ramp(a: Algebra[V], shape: Sequence[int], place: int) -> V:
    return a.iota([side if axis == place else 1 for axis, side in enumerate(shape)], place, "I64")


def _block_sizes(x: V, updates: V, window: tuple[int, ...], single: set[int]) -> tuple[int, ...]:
    distinct_axes(window, len(updates.shape))
    kept = [axis for axis in range(len(x.shape)) if axis not in single]
    per_axis(len(kept), update_window_dims=window)
    sides = dict(zip(kept, (updates.shape[axis] for axis in window), strict=True))
    return tuple(sides.get(axis, min(1, x.shape[axis])) for axis in range(len(x.shape)))

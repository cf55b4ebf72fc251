"""Parts of tensors, tensors joined, repeated, rolled and padded, and the gradients of taking parts."""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.programs.operators.algebra import Algebra, Typed, V
from tallystick.programs.operators.aten.arguments import axis_of, common_dtype, dropped, flat, lifted, part
from tallystick.programs.operators.definition import Family, Ints, Scalar

FAMILY = Family("aten")
PARTS_MAX: Final = 1 << 16
"""The limit on the number of results of one operator."""


# ---- parts


@FAMILY.moves("slice.Tensor", "self[start:end:step]")
def slice_tensor(
    a: Algebra[V], self: V, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> V:
    """As in Python: negative ends count from the end, ends outside are the ends."""
    axis = _real_axis(self, dim)
    first, stop = _range(self.shape[axis], start, end, step)
    return part(a, self, axis, first, stop, step)


@FAMILY.moves("narrow.default", "a range")
def narrow(a: Algebra[V], self: V, dim: int, start: int, length: int) -> V:
    """A negative start counts from the end."""
    axis = _real_axis(self, dim)
    first = start + self.shape[axis] if start < 0 else start
    return part(a, self, axis, first, first + length)


@FAMILY.moves("select.int", "self[index]")
def select(a: Algebra[V], self: V, dim: int, index: int) -> V:
    """The axis goes; a negative index counts from the end."""
    axis = _real_axis(self, dim)
    first = _index(self.shape[axis], index)
    return dropped(a, part(a, self, axis, first, first + 1), {axis})


@FAMILY.moves("split_with_sizes.default unsafe_split_with_sizes.default", "parts")
def split_with_sizes(a: Algebra[V], self: V, split_sizes: Ints, dim: int = 0) -> tuple[V, ...]:
    axis = _real_axis(self, dim)
    if sum(split_sizes) != self.shape[axis] or any(size < 0 for size in split_sizes):
        raise MalformedError(f"sizes {tuple(split_sizes)!s:.60} of a side of {self.shape[axis]}")
    _check_parts(len(split_sizes))
    stops = [sum(split_sizes[: i + 1]) for i in range(len(split_sizes))]
    return tuple(part(a, self, axis, stop - size, stop) for size, stop in zip(split_sizes, stops, strict=True))


@FAMILY.moves("split.sizes", "parts")
def split_sizes(a: Algebra[V], self: V, split_size: Ints, dim: int = 0) -> tuple[V, ...]:
    return split_with_sizes(a, self, split_size, dim)


@FAMILY.moves("split.Tensor unsafe_split.Tensor", "equal parts")
def split(a: Algebra[V], self: V, split_size: int, dim: int = 0) -> tuple[V, ...]:
    axis = _real_axis(self, dim)
    side = self.shape[axis]
    if split_size < 0 or (split_size == 0 and side):
        raise MalformedError(f"a side of {side} in parts of {split_size}")
    starts = range(0, side, split_size) if side else range(1)
    _check_parts(len(starts))
    return tuple(part(a, self, axis, start, min(start + split_size, side)) for start in starts)


@FAMILY.moves("chunk.default unsafe_chunk.default", "so many parts")
def chunk(a: Algebra[V], self: V, chunks: int, dim: int = 0) -> tuple[V, ...]:
    """Parts of ⌈side / chunks⌉, perhaps fewer."""
    axis = _real_axis(self, dim)
    if not 1 <= chunks <= PARTS_MAX:
        raise MalformedError(f"{chunks} parts")
    if not self.shape[axis]:
        return (self,) * chunks
    return split(a, self, -(-self.shape[axis] // chunks), axis)


@FAMILY.moves("unbind.int", "every self[i]")
def unbind(a: Algebra[V], self: V, dim: int = 0) -> tuple[V, ...]:
    axis = _real_axis(self, dim)
    _check_parts(self.shape[axis])
    return tuple(dropped(a, part(a, self, axis, i, i + 1), {axis}) for i in range(self.shape[axis]))


@FAMILY.moves("unfold.default", "sliding windows")
def unfold(a: Algebra[V], self: V, dimension: int, size: int, step: int) -> V:
    """Positions in place of the axis, windows at the end."""
    return a.windows(self, (_real_axis(self, dimension),), (size,), (step,), (1,))


# ---- joined and repeated


@FAMILY.rounds("cat.default", "one behind the other")
def cat(a: Algebra[V], tensors: Sequence[V], dim: int = 0) -> V:
    """At the dtype at which the tensors meet; tensors of shape (0,) fit everywhere."""
    if not tensors:
        raise MalformedError("nothing to concatenate")
    dtype = common_dtype(*tensors)
    filled = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    return a.concat([a.cast(x, dtype) for x in filled], _real_axis(filled[0], dim))


@FAMILY.rounds("stack.default", "side by side")
def stack(a: Algebra[V], tensors: Sequence[V], dim: int = 0) -> V:
    """A new axis counts the tensors, which have one shape."""
    if not tensors or any(x.shape != tensors[0].shape for x in tensors):
        raise MalformedError("tensors of one shape are needed")
    axes = len(tensors[0].shape) + 1
    if not -axes <= dim < axes:
        raise MalformedError(f"axis {dim} of a tensor with {axes} axes")
    sides, axis, dtype = tensors[0].shape, dim % axes, common_dtype(*tensors)
    return a.concat([a.reshape(a.cast(x, dtype), (*sides[:axis], 1, *sides[axis:])) for x in tensors], axis)


@FAMILY.rounds("hstack.default", "along axis 1, or 0 of vectors")
def hstack(a: Algebra[V], tensors: Sequence[V]) -> V:
    """Numbers become vectors."""
    vectors = [lifted(a, x) for x in tensors]
    return cat(a, vectors, 0 if vectors and len(vectors[0].shape) == 1 else 1)


@FAMILY.rounds("vstack.default", "along axis 0")
def vstack(a: Algebra[V], tensors: Sequence[V]) -> V:
    """Numbers and vectors become rows."""
    rows = [x if len(x.shape) > 1 else a.reshape(x, (1, math.prod(x.shape))) for x in tensors]
    return cat(a, rows, 0)


@FAMILY.moves("repeat.default", "tiles")
def repeat(a: Algebra[V], self: V, repeats: Ints) -> V:
    """New axes come in front."""
    new = len(repeats) - len(self.shape)
    if new < 0 or any(count < 0 for count in repeats):
        raise MalformedError(f"repetitions {tuple(repeats)!s:.60} of a tensor with {len(self.shape)} axes")
    sides = (1,) * new + self.shape
    spread = [side for pair in zip(repeats, sides, strict=True) for side in pair]
    apart = a.reshape(self, [side for each in sides for side in (1, each)])
    return a.reshape(a.broadcast(apart, spread), [n * side for n, side in zip(repeats, sides, strict=True)])


@FAMILY.moves("tile.default", "tiles")
def tile(a: Algebra[V], self: V, dims: Ints) -> V:
    """As `repeat`, once along axes in front that have no number."""
    return repeat(a, self, (1,) * (len(self.shape) - len(dims)) + tuple(dims))


@FAMILY.moves("repeat_interleave.self_int", "each element several times")
def repeat_interleave(
    a: Algebra[V], self: V, repeats: int, dim: int | None = None, output_size: int | None = None
) -> V:
    """Without a dim, of the flattened tensor; the output size has to be true."""
    x = flat(a, self) if dim is None else self
    axis = _real_axis(x, dim or 0)
    before, side, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    if repeats < 0 or output_size not in (None, side * repeats):
        raise MalformedError(f"a side of {side} repeated {repeats} times, to {output_size}")
    apart = a.broadcast(a.reshape(x, (*before, side, 1, *behind)), (*before, side, repeats, *behind))
    return a.reshape(apart, (*before, side * repeats, *behind))


@FAMILY.moves("roll.default", "shifted around")
def roll(a: Algebra[V], self: V, shifts: Ints, dims: Ints = ()) -> V:
    """Without dims, of the flattened tensor."""
    if not dims and len(shifts) == 1:
        return a.reshape(_rolled(a, flat(a, self), shifts[0], 0), self.shape)
    if len(shifts) != len(dims) or not dims:
        raise MalformedError(f"{len(shifts)} shifts along {len(dims)} axes")
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(a, self, shift, _real_axis(self, dim))
    return self


@FAMILY.moves("meshgrid.indexing", "a grid")
def meshgrid_indexing(a: Algebra[V], tensors: Sequence[V], indexing: str) -> tuple[V, ...]:
    """`ij`: axis i follows vector i; `xy`: the first two axes are swapped."""
    if indexing not in {"ij", "xy"} or not tensors or any(len(x.shape) > 1 for x in tensors):
        raise MalformedError(f"a grid {indexing!r:.20} of {len(tensors)} tensors, which have to be vectors")
    _check_parts(len(tensors))
    order = list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        order[:2] = [1, 0]
    sides = [math.prod(tensors[i].shape) for i in order]
    return tuple(a.broadcast(_along(a, x, order.index(i), len(sides)), sides) for i, x in enumerate(tensors))


@FAMILY.moves("meshgrid.default", "a grid")
def meshgrid(a: Algebra[V], tensors: Sequence[V]) -> tuple[V, ...]:
    return meshgrid_indexing(a, tensors, "ij")


# ---- padded


@FAMILY.moves("constant_pad_nd.default", "framed")
def constant_pad_nd(a: Algebra[V], self: V, pad: Ints, value: Scalar = 0) -> V:
    """Pairs of low and high for the last axis first; negative ones crop."""
    low, high = _edges(self, pad)
    return a.pad(self, value, low, high, (0,) * len(low))


@FAMILY.moves("pad.default", "framed")
def pad(a: Algebra[V], self: V, pad: Ints, mode: str = "constant", value: float | None = None) -> V:
    """`constant`, `reflect` (without the edge), `replicate` (the edge) or `circular` (the other side)."""
    if mode == "constant":
        return constant_pad_nd(a, self, pad, value or 0)
    if mode not in _FRAMES or value not in (None, 0.0):
        raise MalformedError(f"padding {mode!r:.40} with {value}")
    for axis, (low, high) in enumerate(zip(*_edges(self, pad), strict=True)):
        if (low, high) != (0, 0):
            self = _framed(a, self, axis, low, high, mode)
    return self


# ---- gradients of taking parts, and writing parts


@FAMILY.moves("slice_backward.default", "∂ of self[start:end:step]")
def slice_backward(a: Algebra[V], grad_output: V, input_sizes: Ints, dim: int, start: int, end: int, step: int) -> V:
    return _placed(a, grad_output, *_place(grad_output.shape, input_sizes, dim, start, end, step), step)


@FAMILY.moves("select_backward.default", "∂ of self[index]")
def select_backward(a: Algebra[V], grad_output: V, input_sizes: Ints, dim: int, index: int) -> V:
    axis = _axis_of_sides(input_sizes, dim)
    first = _index(input_sizes[axis], index)
    apart = a.reshape(grad_output, (*input_sizes[:axis], 1, *input_sizes[axis + 1 :]))
    return _placed(a, apart, *_place(apart.shape, input_sizes, axis, first, first + 1, 1), 1)


@FAMILY.moves("slice_scatter.default", "self with self[start:end:step] = src")
def slice_scatter(
    a: Algebra[V], self: V, src: V, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> V:
    """One dtype; `src` may be broadcast."""
    axis = _real_axis(self, dim)
    first, stop = _range(self.shape[axis], start, end, step)
    sides = (*self.shape[:axis], len(range(first, stop, step)), *self.shape[axis + 1 :])
    place = _place(sides, self.shape, axis, first, stop, step)
    written = _placed(a, a.full(sides, 1, "BOOL"), *place, step)
    return a.where(written, _placed(a, a.broadcast(src, sides), *place, step), self)


@FAMILY.moves("select_scatter.default", "self with self[index] = src")
def select_scatter(a: Algebra[V], self: V, src: V, dim: int, index: int) -> V:
    """One dtype, and the shape of what is replaced."""
    axis = _real_axis(self, dim)
    first = _index(self.shape[axis], index)
    if src.shape != (*self.shape[:axis], *self.shape[axis + 1 :]):
        raise MalformedError(f"shape {list(src.shape)} in place of one index along axis {axis} of {list(self.shape)}")
    apart = a.reshape(src, (*self.shape[:axis], 1, *self.shape[axis + 1 :]))
    return slice_scatter(a, self, apart, axis, first, first + 1, 1)


@FAMILY.accumulates("unfold_backward.default", "∂ of sliding windows")
def unfold_backward(a: Algebra[V], grad_in: V, input_sizes: Ints, dim: int, size: int, step: int) -> V:
    """Every element sums what its windows bring."""
    axis, last = _axis_of_sides(input_sizes, dim), len(grad_in.shape) - 1
    if size < 1 or step < 1 or last != len(input_sizes) or grad_in.shape[last] != size:
        raise MalformedError(f"windows of {size} in steps of {step}, of gradients of shape {list(grad_in.shape)}")
    starts = a.mul(a.iota((grad_in.shape[axis], size), 0, "I64"), step)
    index = a.add(starts, a.iota((grad_in.shape[axis], size), 1, "I64"))
    if (grad_in.shape[axis] - 1) * step + size > input_sizes[axis]:
        raise MalformedError(f"{grad_in.shape[axis]} windows of {size} in a side of {input_sizes[axis]}")
    together = a.transpose(grad_in, [*range(axis + 1), last, *range(axis + 1, last)])
    return a.scatter(a.full(input_sizes, 0, grad_in.dtype), (index,), axis, together, add=True)


def _real_axis(x: Typed, dim: int) -> int:
    if not x.shape:
        raise MalformedError("a 0-dimensional tensor has no axis")
    return axis_of(x, dim)


def _axis_of_sides(sides: Sequence[int], dim: int) -> int:
    if any(side < 0 for side in sides):
        raise MalformedError(f"shape {tuple(sides)!s:.60} has a negative side")
    if not -len(sides) <= dim < len(sides):
        raise MalformedError(f"axis {dim} of a tensor with {len(sides)} axes")
    return dim % len(sides)


def _index(side: int, index: int) -> int:
    if not -side <= index < side:
        raise MalformedError(f"index {index} of a side of {side}")
    return index % side


def _range(side: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    if step < 1:
        raise MalformedError(f"a step of {step}")
    first, stop, _ = slice(start, end, step).indices(side)
    return first, max(first, stop)


def _check_parts(count: int) -> None:
    if count > PARTS_MAX:
        raise MalformedError(f"{count} results, more than {PARTS_MAX}")


def _rolled(a: Algebra[V], x: V, shift: int, axis: int) -> V:
    side = x.shape[axis]
    if not side or not shift % side:
        return x
    cut = side - shift % side
    return a.concat([part(a, x, axis, cut, side), part(a, x, axis, 0, cut)], axis)


def _along(a: Algebra[V], x: V, axis: int, axes: int) -> V:
    return a.reshape(x, [math.prod(x.shape) if i == axis else 1 for i in range(axes)])


def _edges(x: Typed, pad: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Low and high of every axis, from pairs for the last axis first."""
    if len(pad) % 2 or len(pad) > 2 * len(x.shape):
        raise MalformedError(f"{len(pad)} edges of a tensor with {len(x.shape)} axes")
    free = (0,) * (len(x.shape) - len(pad) // 2)
    return free + tuple(pad[0::2])[::-1], free + tuple(pad[1::2])[::-1]


def _framed(a: Algebra[V], x: V, axis: int, low: int, high: int, mode: str) -> V:
    side, (reach, least) = x.shape[axis], _FRAMES[mode]
    if low < 0 or high < 0 or side < least or max(low, high) > (side + reach if reach is not None else PARTS_MAX):
        raise MalformedError(f"a side of {side} cannot be framed by {low} and {high} ({mode})")
    if mode == "reflect":
        before = a.flip(part(a, x, axis, 1, low + 1), (axis,))
        behind = a.flip(part(a, x, axis, side - 1 - high, side - 1), (axis,))
    elif mode == "circular":
        before, behind = part(a, x, axis, side - low, side), part(a, x, axis, 0, high)
    else:
        before = _stretched(a, part(a, x, axis, 0, 1), axis, low)
        behind = _stretched(a, part(a, x, axis, side - 1, side), axis, high)
    return a.concat([before, x, behind], axis)


_FRAMES: Final[dict[str, tuple[int | None, int]]] = {"reflect": (-1, 1), "circular": (0, 0), "replicate": (None, 1)}
"""How much longer than the side an edge may be, and the least side."""


def _stretched(a: Algebra[V], x: V, axis: int, side: int) -> V:
    return a.broadcast(x, (*x.shape[:axis], side, *x.shape[axis + 1 :]))


def _place(
    shape: Ints, sides: Sequence[int], dim: int, start: int | None, end: int | None, step: int
) -> tuple[int, int, int]:
    """The axis, and how many zeros stand before and behind a tensor spread by `step`, in one with these sides."""
    axis = _axis_of_sides(sides, dim)
    first, stop = _range(sides[axis], start, end, step)
    count = len(range(first, stop, step))
    if shape != (*sides[:axis], count, *sides[axis + 1 :]):
        raise MalformedError(f"shape {list(shape)} in a range of {count} along axis {axis} of {list(sides)}")
    if not count:
        return axis, 0, sides[axis]
    return axis, first, sides[axis] - first - (count - 1) * step - 1


def _placed(a: Algebra[V], x: V, axis: int, low: int, high: int, step: int) -> V:
    def only(number: int) -> list[int]:
        return [number if i == axis else 0 for i in range(len(x.shape))]

    return a.pad(x, 0, only(low), only(high), only(step - 1))

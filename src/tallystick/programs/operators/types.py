"""The algebra that derives dtypes, shapes and costs of a definition, by the shape rules of the primitives."""
# ruff: noqa: D102  (`Algebra` says what each primitive means)

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS, TensorSpec
from tallystick.programs.operators.algebra import Axes, Comparison, Number
from tallystick.programs.random_words import STATE_SIDE

# Shape rules of the primitives: the shapes of results, or `MalformedError`; nothing is allocated.

Shape = tuple[int, ...]

INTEGERS: Final = {
    **{f"I{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"U{bits}": (0, 2**bits - 1) for bits in (8, 32, 64)},
}
"""The least and the greatest number of each integer type."""
NUMBERS: Final = FLOATS | INTEGERS.keys()
COMPUTED: Final = NUMBERS | {"BOOL"}
AXES_MAX: Final = 64
"""NumPy's limit."""


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """NumPy's rule: aligned at the end, sides of 1 stretch."""
    length = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    return tuple(_broadcast_sides(sides, shapes) for sides in zip(*padded, strict=True))


def _broadcast_sides(sides: tuple[int, ...], shapes: Sequence[Shape]) -> int:
    stretched = {side for side in sides if side != 1}
    if len(stretched) > 1:
        raise MalformedError(f"shapes {shown(shapes)} do not broadcast")
    return stretched.pop() if stretched else 1


def check_broadcast(shape: Shape, wanted: Sequence[int]) -> None:
    """Raise unless `broadcast_to(shape, wanted)` exists."""
    tail = tuple(wanted)[len(wanted) - len(shape) :]
    fits = len(shape) <= len(wanted) <= AXES_MAX and min(wanted, default=0) >= 0
    if not fits or any(side not in (1, to) for side, to in zip(shape, tail, strict=True)):
        raise MalformedError(f"shape {list(shape)} does not broadcast to {shown(wanted)}")


def check_axes(shape: Shape, axes: Sequence[int]) -> None:
    """Raise unless `axes` are distinct axes of `shape`, counted from 0."""
    if len(axes) > len(shape) or len(set(axes)) != len(axes) or any(not 0 <= axis < len(shape) for axis in axes):
        raise MalformedError(f"axes {shown(axes)} of a tensor with {len(shape)} axes")


def check_lengths(shape: Shape, *lists: Sequence[int]) -> None:
    """Raise unless each list has one entry per axis."""
    if any(len(numbers) != len(shape) for numbers in lists):
        raise MalformedError(f"{len(shape)} numbers are needed, one per axis, not {[len(each) for each in lists]}")


def reduced(shape: Shape, axes: Axes, keep: bool) -> Shape:
    """The shape without `axes`, or with sides of 1 in their place."""
    check_axes(shape, axes)
    return tuple(1 if i in axes else side for i, side in enumerate(shape) if keep or i not in axes)


def without(shape: Shape, axes: Collection[int]) -> Shape:
    """The sides that are not in `axes`."""
    return tuple(side for i, side in enumerate(shape) if i not in axes)


def dotted(x: Shape, y: Shape, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes]) -> Shape:
    """Batch sides, free sides of `x`, free sides of `y`."""
    check_axes(x, contract[0] + batch[0])
    check_axes(y, contract[1] + batch[1])
    for ours, theirs in (contract, batch):
        if [x[i] for i in ours] != [y[i] for i in theirs]:
            raise MalformedError(f"axes {list(ours)} of {list(x)} do not match axes {list(theirs)} of {list(y)}")
    return tuple(x[i] for i in batch[0]) + without(x, contract[0] + batch[0]) + without(y, contract[1] + batch[1])


def reshaped(shape: Shape, wanted: Sequence[int]) -> Shape:
    """`wanted`, if it holds as many elements."""
    if any(side < 0 for side in wanted) or math.prod(shape) != math.prod(wanted):
        raise MalformedError(f"shape {list(shape)} does not fit {shown(wanted)}")
    return tuple(wanted)


def sliced(shape: Shape, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Shape:
    """How many indices each range holds."""
    check_lengths(shape, starts, stops, steps)
    for side, start, stop, step in zip(shape, starts, stops, steps, strict=True):
        if not (0 <= start <= stop <= side and step >= 1):
            raise MalformedError(f"range {start}:{stop}:{step} of a side of {side}")
    return tuple(-((start - stop) // step) for start, stop, step in zip(starts, stops, steps, strict=True))


def padded(shape: Shape, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Shape:
    """The shape after StableHLO `pad`: interior first, then both edges; negative edges crop."""
    check_lengths(shape, low, high, interior)
    if any(gap < 0 for gap in interior):
        raise MalformedError(f"interior padding {shown(interior)} is negative")
    spread = [side + max(side - 1, 0) * gap for side, gap in zip(shape, interior, strict=True)]
    sides = tuple(below + side + above for below, side, above in zip(low, spread, high, strict=True))
    if any(side < 0 for side in sides):
        raise MalformedError(f"shape {list(shape)} cropped by {shown(low)} and {shown(high)} has a negative side")
    return sides


def concatenated(shapes: Sequence[Shape], axis: int) -> Shape:
    """The sum of the sides along `axis`; the others are equal."""
    if not shapes:
        raise MalformedError("nothing to concatenate")
    first = shapes[0]
    check_axes(first, (axis,))
    if any(len(shape) != len(first) or without(shape, (axis,)) != without(first, (axis,)) for shape in shapes):
        raise MalformedError(f"shapes {shown(shapes)} do not concatenate along axis {axis}")
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def taken(shape: Shape, indices: Sequence[Shape], axis: int) -> Shape:
    """The broadcast shape of `indices` in place of as many axes from `axis` on."""
    check_axes(shape, tuple(range(axis, axis + min(len(indices), len(shape) + 1))))
    if not indices:
        raise MalformedError("no index tensors")
    chosen, sides = broadcast_shapes(indices), shape[axis : axis + len(indices)]
    if 0 in sides and 0 not in chosen:
        raise MalformedError(f"nothing can be indexed along axes of sides {list(sides)}")
    return shape[:axis] + chosen + shape[axis + len(indices) :]


def windowed(shape: Shape, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Shape:
    """⌊(side − (size − 1)·dilation − 1) / stride⌋ + 1 positions along each axis, then the window's sides."""
    check_axes(shape, axes)
    check_lengths(tuple(axes), sizes, strides, dilations)
    if any(number < 1 for number in (*sizes, *strides, *dilations)):
        raise MalformedError(f"windows of {shown(sizes)}, strides {shown(strides)}, dilations {shown(dilations)}")
    sides = list(shape)
    for axis, size, stride, dilation in zip(axes, sizes, strides, dilations, strict=True):
        sides[axis] = (shape[axis] - (size - 1) * dilation - 1) // stride + 1
        if sides[axis] < 1:
            raise MalformedError(f"a side of {shape[axis]} holds no window of {size} with dilation {dilation}")
    return (*sides, *sizes)


def check_number(number: Number, dtype: str) -> None:
    """Raise unless `number` is a constant of `dtype`: any for floats, a whole one in range for integers."""
    if dtype in FLOATS:
        return
    least, greatest = INTEGERS.get(dtype, (0, 1))
    if not math.isfinite(number) or number != int(number) or not least <= number <= greatest:
        raise MalformedError(f"{number!r:.40} is no {dtype}")


def shown(numbers: object) -> str:
    """Numbers as text of at most 101 characters."""
    text = str(list(numbers) if isinstance(numbers, tuple) else numbers)
    return text if len(text) <= 100 else f"{text[:100]}…"


# The algebra that derives the dtypes and shapes of a definition and counts its costs; it allocates nothing.
#
# The counts are
#
# * `flops`: floating-point operations. A multiply-add is 2, each other arithmetic operation or library function on a
#   float is 1 per element of its result, a sum of n elements is n. Comparisons, choices, conversions, moves and
#   integers are 0.
# * `bytes_moved`: the bytes read and written by an evaluation that stores every intermediate. Views (reshape,
#   broadcast, transpose, slice, windows) are 0.
# * `largest_bytes`: the largest intermediate, including views, because an engine may have to store them.

BYTES_MAX: Final = 1 << 40
"""The default limit on the bytes of one intermediate of an operator."""

Operand = TensorSpec | Number


@dataclass
class Types:
    """`Algebra[TensorSpec]`; raises `MalformedError` for operands that do not fit, and beyond `bytes_max`."""

    bytes_max: int = BYTES_MAX
    flops: int = 0
    bytes_moved: int = 0
    largest_bytes: int = 0

    # ---- values from nothing

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> TensorSpec:
        result = self._made(dtype, shape)
        check_number(number, dtype)
        return self._written(result)

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> TensorSpec:
        """Not BOOL; the last index has to be a number of an integer type."""
        result = self._made(dtype, shape)
        check_axes(result.shape, (axis,))
        _check_dtype(result, "numbers", NUMBERS)
        check_number(max(result.shape[axis] - 1, 0), dtype)
        return self._written(result)

    # ---- one element at a time

    def cast(self, x: TensorSpec, dtype: str) -> TensorSpec:
        """From any dtype to any other; costs nothing if the dtype does not change."""
        kept = self._made(x.dtype, x.shape)
        return kept if dtype == x.dtype else self._written(self._made(dtype, x.shape), x)

    def wide(self, x: TensorSpec) -> TensorSpec:
        return self.cast(x, "F32") if x.dtype in {"F16", "BF16"} else x

    def _signed(self, x: TensorSpec) -> TensorSpec:
        _check_dtype(x, "numbers", NUMBERS)
        return self._computed(x, x)

    neg = abs = sign = _signed

    def _of_float(self, x: TensorSpec) -> TensorSpec:
        _check_dtype(x, "floats", FLOATS)
        return self._computed(x, x)

    floor = ceil = trunc = round = _of_float
    sqrt = rsqrt = exp = expm1 = log = log1p = sin = cos = tanh = erf = sigmoid = _of_float

    def is_finite(self, x: TensorSpec) -> TensorSpec:
        _check_dtype(x, "floats", FLOATS)
        return self._written(self._made("BOOL", x.shape), x)

    def add(self, x: Operand, y: Operand) -> TensorSpec:
        return self._arithmetic(x, y, NUMBERS)

    sub = mul = add

    def div(self, x: Operand, y: Operand) -> TensorSpec:
        return self._arithmetic(x, y, FLOATS)

    def pow(self, x: Operand, y: Operand) -> TensorSpec:
        """Floats of one type, or integers to a whole constant that is not negative."""
        if isinstance(x, TensorSpec) and x.dtype in INTEGERS:
            if isinstance(y, TensorSpec) or y < 0:
                raise MalformedError("an integer is raised to a whole constant of at least 0 only")
            return self._arithmetic(x, y, INTEGERS)
        return self._arithmetic(x, y, FLOATS)

    def maximum(self, x: TensorSpec, y: Operand) -> TensorSpec:
        return self._written(self._together(x, y), x, y)

    minimum = maximum

    def floor_divide(self, x: TensorSpec, y: Operand) -> TensorSpec:
        if not isinstance(y, TensorSpec) and y == 0:
            raise MalformedError("an integer is divided by 0")
        return self._arithmetic(x, y, INTEGERS)

    remainder = floor_divide

    def compare(self, x: TensorSpec, y: Operand, how: Comparison) -> TensorSpec:
        return self._written(self._made("BOOL", self._together(x, y).shape), x, y)

    def logical_and(self, x: TensorSpec, y: TensorSpec) -> TensorSpec:
        _check_dtype(x, "integers or BOOL", INTEGERS.keys() | {"BOOL"})
        return self._written(self._together(x, y), x, y)

    logical_or = logical_xor = logical_and

    def logical_not(self, x: TensorSpec) -> TensorSpec:
        return self.logical_and(x, x)

    def shift_left(self, x: TensorSpec, y: Operand) -> TensorSpec:
        if not isinstance(y, TensorSpec) and y < 0:
            raise MalformedError(f"a shift by {y}")
        return self._arithmetic(x, y, INTEGERS)

    shift_right = shift_left

    def where(self, condition: TensorSpec, x: Operand, y: Operand) -> TensorSpec:
        _check_dtype(condition, "BOOL", {"BOOL"})
        both = self._together(x, y)
        shape = broadcast_shapes([condition.shape, both.shape])
        return self._written(self._made(both.dtype, shape), condition, x, y)

    # ---- many elements to one

    def sum(self, x: TensorSpec, axes: Axes, keep: bool = False, short: int = 0) -> TensorSpec:
        _check_dtype(x, "numbers", NUMBERS)
        result = self._made(x.dtype, reduced(x.shape, axes, keep))
        return self._computed(result, x, operations=x.size)

    prod = sum

    def max(self, x: TensorSpec, axes: Axes, keep: bool = False) -> TensorSpec:
        result = self._made(x.dtype, reduced(x.shape, axes, keep))
        _check_filled(x, axes)
        return self._written(result, x)

    min = max

    def argmax(self, x: TensorSpec, axis: int, keep: bool = False) -> TensorSpec:
        result = self._made("I64", reduced(x.shape, (axis,), keep))
        _check_filled(x, (axis,))
        return self._written(result, x)

    def cumsum(self, x: TensorSpec, axis: int) -> TensorSpec:
        _check_dtype(x, "numbers", NUMBERS)
        check_axes(x.shape, (axis,))
        return self._computed(x, x)

    def mersenne(self, state: TensorSpec, move: TensorSpec, count: int) -> tuple[TensorSpec, TensorSpec]:
        for name, given, shape in (("state", state, (STATE_SIDE,)), ("move", move, (2,))):
            if (given.dtype, given.shape) != ("I64", shape):
                raise MalformedError(f"{name} is {given}, not I64{list(shape)}")
        return self._made("I64", (count,)), self._made("I64", (STATE_SIDE,))

    def sort(self, x: TensorSpec, axis: int, descending: bool) -> tuple[TensorSpec, TensorSpec]:
        check_axes(x.shape, (axis,))
        return self._written(x, x), self._written(self._made("I64", x.shape))

    def dot(
        self,
        x: TensorSpec,
        y: TensorSpec,
        contract: tuple[Axes, Axes],
        batch: tuple[Axes, Axes] = ((), ()),
        short: int = 0,
    ) -> TensorSpec:
        """Numbers of one type; 2 operations per product."""
        _check_dtype(x, "numbers", NUMBERS)
        _check_same_dtype(x, y)
        result = self._made(x.dtype, dotted(x.shape, y.shape, contract, batch))
        products = result.size * math.prod(x.shape[axis] for axis in contract[0])
        return self._computed(result, x, y, operations=2 * products)

    # ---- moving data

    def reshape(self, x: TensorSpec, shape: Sequence[int]) -> TensorSpec:
        return self._made(x.dtype, reshaped(x.shape, shape))

    def broadcast(self, x: TensorSpec, shape: Sequence[int]) -> TensorSpec:
        check_broadcast(x.shape, shape)
        return self._made(x.dtype, shape)

    def transpose(self, x: TensorSpec, axes: Sequence[int]) -> TensorSpec:
        check_lengths(x.shape, axes)
        check_axes(x.shape, axes)
        return self._made(x.dtype, [x.shape[axis] for axis in axes])

    def slice(self, x: TensorSpec, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> TensorSpec:
        return self._made(x.dtype, sliced(x.shape, starts, stops, steps))

    def pad(
        self, x: TensorSpec, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
    ) -> TensorSpec:
        check_number(number, x.dtype)
        return self._written(self._made(x.dtype, padded(x.shape, low, high, interior)), x)

    def concat(self, xs: Sequence[TensorSpec], axis: int) -> TensorSpec:
        shape = concatenated([x.shape for x in xs], axis)
        _check_same_dtype(*xs)
        return self._written(self._made(xs[0].dtype, shape), *xs)

    def flip(self, x: TensorSpec, axes: Axes) -> TensorSpec:
        check_axes(x.shape, axes)
        return self._written(x, x)

    def take(self, x: TensorSpec, indices: Sequence[TensorSpec], axis: int) -> TensorSpec:
        result = self._made(x.dtype, taken(x.shape, [index.shape for index in indices], axis))
        _check_indices(indices)
        return self._written(result, result, *indices)

    def take_along(self, x: TensorSpec, indices: TensorSpec, axis: int) -> TensorSpec:
        check_axes(x.shape, (axis,))
        _check_indices((indices,))
        if len(indices.shape) != len(x.shape) or _beside(indices, axis) != _beside(x, axis):
            raise MalformedError(f"indices {indices} do not lie along axis {axis} of {x}")
        if indices.size and not x.shape[axis]:
            raise MalformedError(f"nothing can be indexed along axis {axis} of {x}")
        result = self._made(x.dtype, indices.shape)
        return self._written(result, result, indices)

    def scatter(
        self, x: TensorSpec, indices: Sequence[TensorSpec], axis: int, updates: TensorSpec, add: bool
    ) -> TensorSpec:
        """Updates of the shape that `take` has, of one dtype; only numbers are added."""
        shape = taken(x.shape, [index.shape for index in indices], axis)
        _check_indices(indices)
        _check_same_dtype(x, updates)
        if updates.shape != shape:
            raise MalformedError(f"updates {updates} for {list(shape)} places")
        if not add:
            return self._written(x, x, updates, *indices)
        _check_dtype(x, "numbers", NUMBERS)
        return self._computed(x, x, updates, *indices, operations=updates.size)

    def windows(
        self, x: TensorSpec, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> TensorSpec:
        return self._made(x.dtype, windowed(x.shape, axes, sizes, strides, dilations))

    # ---- checks and counts

    def _arithmetic(self, x: Operand, y: Operand, allowed: Iterable[str]) -> TensorSpec:
        result = self._together(x, y)
        _check_dtype(result, "floats" if allowed is FLOATS else "numbers", allowed)
        return self._computed(result, x, y)

    def _together(self, x: Operand, y: Operand) -> TensorSpec:
        """The spec to which two operands broadcast before an operation; a constant takes the other's dtype."""
        tensors = [each for each in (x, y) if isinstance(each, TensorSpec)]
        if not tensors:
            raise MalformedError("both operands are constants")
        _check_same_dtype(*tensors)
        for number in (each for each in (x, y) if not isinstance(each, TensorSpec)):
            check_number(number, tensors[0].dtype)
        return self._made(tensors[0].dtype, broadcast_shapes([tensor.shape for tensor in tensors]))

    def _made(self, dtype: str, shape: Sequence[int]) -> TensorSpec:
        if dtype not in COMPUTED:
            raise MalformedError(f"{dtype!r:.40} is no dtype that is computed with")
        spec = TensorSpec(dtype, tuple(shape))
        if spec.nbytes > self.bytes_max:
            raise MalformedError(f"{spec} takes {spec.nbytes} bytes, more than {self.bytes_max}")
        self.largest_bytes = max(self.largest_bytes, spec.nbytes)
        return spec

    def _computed(self, result: TensorSpec, *read: Operand, operations: int | None = None) -> TensorSpec:
        if result.dtype in FLOATS:
            self.flops += result.size if operations is None else operations
        return self._written(result, *read)

    def _written(self, result: TensorSpec, *read: Operand) -> TensorSpec:
        self._made(result.dtype, result.shape)
        self.bytes_moved += result.nbytes + sum(each.nbytes for each in read if isinstance(each, TensorSpec))
        return result


def _check_dtype(x: TensorSpec, wanted: str, allowed: Iterable[str]) -> None:
    if x.dtype not in allowed:
        raise MalformedError(f"{x} where {wanted} are needed")


def _check_same_dtype(*tensors: TensorSpec) -> None:
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise MalformedError(f"dtypes differ: {shown(' and '.join(map(str, tensors)))}")


def _check_filled(x: TensorSpec, axes: Axes) -> None:
    if 0 in (x.shape[axis] for axis in axes):
        raise MalformedError(f"{x} has nothing to choose from along {list(axes)}")


def _check_indices(indices: Sequence[TensorSpec]) -> None:
    for index in indices:
        _check_dtype(index, "integer indices", INTEGERS)


def _beside(x: TensorSpec, axis: int) -> tuple[int, ...]:
    return without(x.shape, (axis,))

"""The algebra that derives the dtypes and shapes of a definition and counts its costs; it allocates nothing.

The counts are

* `flops`: floating-point operations. A multiply-add is 2, each other arithmetic operation or library function on a
  float is 1 per element of its result, a sum of n elements is n. Comparisons, choices, conversions, moves and
  integers are 0.
* `bytes_moved`: the bytes read and written by an evaluation that stores every intermediate. Views (reshape, broadcast,
  transpose, slice, windows) are 0.
* `largest_bytes`: the largest intermediate, including views, because an engine may have to store them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.commitments.mt19937 import STATE_SIDE
from tallystick.errors import MalformedError
from tallystick.operators import shapes
from tallystick.operators.algebra import Axes, Comparison, Number
from tallystick.operators.shapes import COMPUTED, FLOATS, INTEGERS, NUMBERS, check_number
from tallystick.tensors.spec import TensorSpec

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
        """`number` is a constant of `dtype`."""
        result = self._made(dtype, shape)
        check_number(number, dtype)
        return self._written(result)

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> TensorSpec:
        """Not BOOL; the last index has to be a number of an integer type."""
        result = self._made(dtype, shape)
        shapes.check_axes(result.shape, (axis,))
        _check_dtype(result, "numbers", NUMBERS)
        check_number(max(result.shape[axis] - 1, 0), dtype)
        return self._written(result)

    # ---- one element at a time

    def cast(self, x: TensorSpec, dtype: str) -> TensorSpec:
        """From any dtype to any other; costs nothing if the dtype does not change."""
        kept = self._made(x.dtype, x.shape)
        return kept if dtype == x.dtype else self._written(self._made(dtype, x.shape), x)

    def wide(self, x: TensorSpec) -> TensorSpec:
        """F32 for 16-bit floats."""
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
        """BOOL of floats."""
        _check_dtype(x, "floats", FLOATS)
        return self._written(self._made("BOOL", x.shape), x)

    def add(self, x: TensorSpec, y: Operand) -> TensorSpec:
        """Numbers of one type."""
        return self._arithmetic(x, y, NUMBERS)

    def sub(self, x: Operand, y: Operand) -> TensorSpec:
        """Numbers of one type."""
        return self._arithmetic(x, y, NUMBERS)

    mul = add

    def div(self, x: Operand, y: Operand) -> TensorSpec:
        """Floats of one type."""
        return self._arithmetic(x, y, FLOATS)

    def pow(self, x: Operand, y: Operand) -> TensorSpec:
        """Floats of one type, or integers to a whole constant that is not negative."""
        if isinstance(x, TensorSpec) and x.dtype in INTEGERS:
            if isinstance(y, TensorSpec) or y < 0:
                raise MalformedError("an integer is raised to a whole constant of at least 0 only")
            return self._arithmetic(x, y, INTEGERS)
        return self._arithmetic(x, y, FLOATS)

    def maximum(self, x: TensorSpec, y: Operand) -> TensorSpec:
        """Any one dtype."""
        return self._written(self._together(x, y), x, y)

    minimum = maximum

    def floor_divide(self, x: TensorSpec, y: Operand) -> TensorSpec:
        """Integers of one type; a constant divisor is not 0."""
        if not isinstance(y, TensorSpec) and y == 0:
            raise MalformedError("an integer is divided by 0")
        return self._arithmetic(x, y, INTEGERS)

    remainder = floor_divide

    def compare(self, x: TensorSpec, y: Operand, how: Comparison) -> TensorSpec:
        """BOOL of any one dtype."""
        return self._written(self._made("BOOL", self._together(x, y).shape), x, y)

    def logical_and(self, x: TensorSpec, y: TensorSpec) -> TensorSpec:
        """Integers or BOOL of one type."""
        _check_dtype(x, "integers or BOOL", INTEGERS.keys() | {"BOOL"})
        return self._written(self._together(x, y), x, y)

    logical_or = logical_xor = logical_and

    def logical_not(self, x: TensorSpec) -> TensorSpec:
        """Integers or BOOL."""
        return self.logical_and(x, x)

    def shift_left(self, x: TensorSpec, y: Operand) -> TensorSpec:
        """Integers of one type; a constant shift is not negative."""
        if not isinstance(y, TensorSpec) and y < 0:
            raise MalformedError(f"a shift by {y}")
        return self._arithmetic(x, y, INTEGERS)

    shift_right = shift_left

    def where(self, condition: TensorSpec, x: Operand, y: Operand) -> TensorSpec:
        """A BOOL condition and two of one type."""
        _check_dtype(condition, "BOOL", {"BOOL"})
        both = self._together(x, y)
        shape = shapes.broadcast_shapes([condition.shape, both.shape])
        return self._written(self._made(both.dtype, shape), condition, x, y)

    # ---- many elements to one

    def sum(self, x: TensorSpec, axes: Axes, keep: bool = False, short: int = 0) -> TensorSpec:
        """Numbers."""
        _check_dtype(x, "numbers", NUMBERS)
        result = self._made(x.dtype, shapes.reduced(x.shape, axes, keep))
        return self._computed(result, x, operations=x.size)

    def prod(self, x: TensorSpec, axes: Axes, keep: bool = False) -> TensorSpec:
        """Numbers."""
        return self.sum(x, axes, keep)

    def max(self, x: TensorSpec, axes: Axes, keep: bool = False) -> TensorSpec:
        """Any dtype, over at least one element."""
        result = self._made(x.dtype, shapes.reduced(x.shape, axes, keep))
        _check_filled(x, axes)
        return self._written(result, x)

    min = max

    def argmax(self, x: TensorSpec, axis: int, keep: bool = False) -> TensorSpec:
        """I64, over at least one element."""
        result = self._made("I64", shapes.reduced(x.shape, (axis,), keep))
        _check_filled(x, (axis,))
        return self._written(result, x)

    def cumsum(self, x: TensorSpec, axis: int) -> TensorSpec:
        """Numbers."""
        _check_dtype(x, "numbers", NUMBERS)
        shapes.check_axes(x.shape, (axis,))
        return self._computed(x, x)

    def mersenne(self, state: TensorSpec, move: TensorSpec, count: int) -> tuple[TensorSpec, TensorSpec]:
        """I64 [count], and I64 [625]."""
        for name, given, shape in (("state", state, (STATE_SIDE,)), ("move", move, (2,))):
            if (given.dtype, given.shape) != ("I64", shape):
                raise MalformedError(f"{name} is {given}, not I64{list(shape)}")
        return self._made("I64", (count,)), self._made("I64", (STATE_SIDE,))

    def sort(self, x: TensorSpec, axis: int, descending: bool) -> tuple[TensorSpec, TensorSpec]:
        """Any dtype, and I64."""
        shapes.check_axes(x.shape, (axis,))
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
        result = self._made(x.dtype, shapes.dotted(x.shape, y.shape, contract, batch))
        products = result.size * math.prod(x.shape[axis] for axis in contract[0])
        return self._computed(result, x, y, operations=2 * products)

    # ---- moving data

    def reshape(self, x: TensorSpec, shape: Sequence[int]) -> TensorSpec:
        """As many elements."""
        return self._made(x.dtype, shapes.reshaped(x.shape, shape))

    def broadcast(self, x: TensorSpec, shape: Sequence[int]) -> TensorSpec:
        """Sides of 1 stretch, new axes come in front."""
        shapes.check_broadcast(x.shape, shape)
        return self._made(x.dtype, shape)

    def transpose(self, x: TensorSpec, axes: Sequence[int]) -> TensorSpec:
        """Every axis once."""
        shapes.check_lengths(x.shape, axes)
        shapes.check_axes(x.shape, axes)
        return self._made(x.dtype, [x.shape[axis] for axis in axes])

    def slice(self, x: TensorSpec, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> TensorSpec:
        """Ranges inside the sides."""
        return self._made(x.dtype, shapes.sliced(x.shape, starts, stops, steps))

    def pad(
        self, x: TensorSpec, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
    ) -> TensorSpec:
        """`number` is a constant of the dtype."""
        check_number(number, x.dtype)
        return self._written(self._made(x.dtype, shapes.padded(x.shape, low, high, interior)), x)

    def concat(self, xs: Sequence[TensorSpec], axis: int) -> TensorSpec:
        """One dtype."""
        shape = shapes.concatenated([x.shape for x in xs], axis)
        _check_same_dtype(*xs)
        return self._written(self._made(xs[0].dtype, shape), *xs)

    def flip(self, x: TensorSpec, axes: Axes) -> TensorSpec:
        """Distinct axes."""
        shapes.check_axes(x.shape, axes)
        return self._written(x, x)

    def take(self, x: TensorSpec, indices: Sequence[TensorSpec], axis: int) -> TensorSpec:
        """Integer indices."""
        result = self._made(x.dtype, shapes.taken(x.shape, [index.shape for index in indices], axis))
        _check_indices(indices)
        return self._written(result, result, *indices)

    def take_along(self, x: TensorSpec, indices: TensorSpec, axis: int) -> TensorSpec:
        """Integer indices, of the same shape but along `axis`."""
        shapes.check_axes(x.shape, (axis,))
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
        shape = shapes.taken(x.shape, [index.shape for index in indices], axis)
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
        """At least one position."""
        return self._made(x.dtype, shapes.windowed(x.shape, axes, sizes, strides, dilations))

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
        return self._made(tensors[0].dtype, shapes.broadcast_shapes([tensor.shape for tensor in tensors]))

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
        raise MalformedError(f"dtypes differ: {shapes.shown(' and '.join(map(str, tensors)))}")


def _check_filled(x: TensorSpec, axes: Axes) -> None:
    if 0 in (x.shape[axis] for axis in axes):
        raise MalformedError(f"{x} has nothing to choose from along {list(axes)}")


def _check_indices(indices: Sequence[TensorSpec]) -> None:
    for index in indices:
        _check_dtype(index, "integer indices", INTEGERS)


def _beside(x: TensorSpec, axis: int) -> tuple[int, ...]:
    return shapes.without(x.shape, (axis,))

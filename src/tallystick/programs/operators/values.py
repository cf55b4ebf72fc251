"""The results of an operator, computed from its definition on the arrays of NumPy, PyTorch or JAX.

    Values(NUMPY, "F64")    the verifier's reference: exact definitions in float64
    Values(JAX, None)       the same definitions in the dtypes that they state

In the reference every float is stored and computed in float64, whatever its dtype. Conversions to narrower floats do
not round, so that a kernel differs from the reference only by the kernel's own rounding. Constants of a definition are
rounded to their dtype, as in every kernel. Integers wrap at the width of their dtype.
"""
# ruff: noqa: D102  (`Algebra` says what each primitive means)

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, Final, TypeAlias

import numpy as np

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import FLOATS, Tensor, bfloat16_to_float32, dtype_of, numpy_dtype, round_to_bfloat16
from tallystick.programs.operators.algebra import Axes, Comparison, Number
from tallystick.programs.operators.arrays import Array, ArrayLibrary, exact_float64
from tallystick.programs.operators.types import (
    broadcast_shapes,
    check_axes,
    check_broadcast,
    check_lengths,
    check_number,
    concatenated,
    dotted,
    padded,
    reshaped,
    sliced,
    taken,
    windowed,
)
from tallystick.programs.random_words import draw

_COMPARISONS: Final = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_WIDE: Final = {"F16": "F32", "BF16": "F32"}


@dataclass(frozen=True, eq=False)
class Value:
    """An array and its nominal dtype; in the reference the array stores every float in float64 all the same."""

    array: Array
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides."""
        return tuple(self.array.shape)


Operand: TypeAlias = "Value | Number"


@dataclass(frozen=True)
class Values:
    """The algebra of arrays. `working` is the dtype in which all floats are stored: `F64`, or `None` for their own.

    Every method raises `MalformedError` for operands that do not fit, for an index out of range and for an integer
    divided by 0 (unless the array is traced, so that its elements are unknown), and `UnavailableError` for a dtype in
    which the library cannot compute.
    """

    library: ArrayLibrary
    working: str | None = None

    # ---- tensors

    def load(self, tensor: Tensor) -> Value:
        """The elements of a tensor, exactly."""
        if self.working is not None and tensor.dtype in FLOATS:
            wide = exact_float64(tensor.array(), tensor.dtype)
            return Value(self.library.asarray(wide, self.working), tensor.dtype)
        return Value(self.library.asarray(tensor.array(), tensor.dtype), tensor.dtype)

    def unload(self, value: Value) -> Tensor:
        """A tensor in the dtype in which the elements are stored."""
        array = self.library.storage(value.array)
        return Tensor.of(array, "BF16" if self._held(value.dtype) == "BF16" else dtype_of(array.dtype))

    # ---- values from nothing

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> Value:
        return self.broadcast(self._constant(number, dtype), shape)

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> Value:
        column = [1] * len(shape)
        column[axis] = shape[axis]
        held = self._held(dtype)
        array = self.library.asarray(np.arange(shape[axis]), "I64")
        return self.broadcast(self.reshape(Value(self.library.convert(array, held), dtype), column), shape)

    # ---- one element at a time

    def cast(self, x: Value, dtype: str) -> Value:
        """The reference does not round to narrower floats."""
        if dtype == "BOOL" and x.dtype != "BOOL":
            return self.compare(x, 0, "ne")
        if self._held(dtype) == self._held(x.dtype):
            return Value(x.array, dtype)
        return self._made(self.library.convert, dtype, x.array, self._held(dtype))

    def _each(self, name: str, x: Value, dtype: str | None = None) -> Value:
        return self._made(getattr(self.library.xp, name), dtype or x.dtype, x.array)

    def _of_library(self, name: str, x: Value) -> Value:
        return self._made(getattr(self.library, name), x.dtype, x.array)

    def _both(self, name: str, x: Operand, y: Operand, dtype: str | None = None) -> Value:
        left, right = self._pair(x, y)
        broadcast_shapes([left.shape, right.shape])
        return self._made(getattr(self.library.xp, name), dtype or left.dtype, left.array, right.array)

    neg = partialmethod(_each, "negative")
    sign = partialmethod(_each, "sign")  # NaN for NaN
    floor = partialmethod(_each, "floor")
    ceil = partialmethod(_each, "ceil")
    trunc = partialmethod(_each, "trunc")
    round = partialmethod(_each, "round")
    sqrt = partialmethod(_each, "sqrt")
    rsqrt = partialmethod(_of_library, "rsqrt")
    exp = partialmethod(_each, "exp")
    expm1 = partialmethod(_each, "expm1")
    log = partialmethod(_each, "log")
    log1p = partialmethod(_each, "log1p")
    sin = partialmethod(_each, "sin")
    cos = partialmethod(_each, "cos")
    tanh = partialmethod(_each, "tanh")
    erf = partialmethod(_of_library, "erf")
    sigmoid = partialmethod(_of_library, "sigmoid")
    is_finite = partialmethod(_each, "isfinite", dtype="BOOL")
    logical_not = partialmethod(_each, "bitwise_invert")
    add = partialmethod(_both, "add")
    sub = partialmethod(_both, "subtract")
    mul = partialmethod(_both, "multiply")
    div = partialmethod(_both, "divide")
    logical_and = partialmethod(_both, "bitwise_and")
    logical_or = partialmethod(_both, "bitwise_or")
    logical_xor = partialmethod(_both, "bitwise_xor")

    def abs(self, x: Value) -> Value:
        return x if x.dtype.startswith("U") else self._each("abs", x)

    def pow(self, x: Operand, y: Operand) -> Value:
        """An integer to a negative power raises `MalformedError`."""
        if not isinstance(y, Value) and isinstance(x, Value) and x.dtype in FLOATS and y in _ROOTS_AND_PRODUCTS:
            return _ROOTS_AND_PRODUCTS[y](self, x)
        left, right = self._pair(x, y)
        if right.dtype not in FLOATS and not right.dtype.startswith("U"):
            self._refuse(right.array < 0, "an integer to a negative power")
        return self._both("pow", left, right)

    def maximum(self, x: Value, y: Operand) -> Value:
        return self.logical_or(x, self._like(y, x)) if x.dtype == "BOOL" else self._both("maximum", x, y)

    def minimum(self, x: Value, y: Operand) -> Value:
        return self.logical_and(x, self._like(y, x)) if x.dtype == "BOOL" else self._both("minimum", x, y)

    def _divided(self, name: str, x: Value, y: Operand) -> Value:
        """Raises `MalformedError` for a divisor 0."""
        divisor = self._like(y, x)
        self._refuse(divisor.array == 0, "an integer divided by 0")
        return self._both(name, x, divisor)

    floor_divide = partialmethod(_divided, "floor_divide")
    remainder = partialmethod(_divided, "remainder")

    def compare(self, x: Value, y: Operand, how: Comparison) -> Value:
        return self._both(_COMPARISONS[how], x, y, "BOOL")

    def _shifted(self, name: str, x: Value, y: Operand) -> Value:
        """If `y` is negative or at least the width, 0 to the left, and the sign in every bit to the right."""
        places, bits = self._like(y, x), 8 * numpy_dtype(x.dtype).itemsize
        inside = self.compare(places, bits, "lt")
        if not x.dtype.startswith("U"):
            inside = self.logical_and(inside, self.compare(places, 0, "ge"))
        shifted = self._both(name, x, self.where(inside, places, 0))
        if name == "bitwise_left_shift" or x.dtype.startswith("U"):
            return self.where(inside, shifted, 0)
        return self.where(inside, shifted, self._both(name, x, bits - 1))  # the sign, when all bits are shifted out

    shift_left = partialmethod(_shifted, "bitwise_left_shift")
    shift_right = partialmethod(_shifted, "bitwise_right_shift")

    def where(self, condition: Value, x: Operand, y: Operand) -> Value:
        left, right = self._pair(x, y)
        broadcast_shapes([condition.shape, left.shape, right.shape])
        return self._made(self.library.xp.where, left.dtype, condition.array, left.array, right.array)

    # ---- many elements to one

    def sum(self, x: Value, axes: Axes, keep: bool = False, short: int = 0) -> Value:
        return self._reduced("sum", x, axes, keep, dtype=x.array.dtype)

    def prod(self, x: Value, axes: Axes, keep: bool = False) -> Value:
        return self._reduced("prod", x, axes, keep, dtype=x.array.dtype)

    def max(self, x: Value, axes: Axes, keep: bool = False) -> Value:
        """Raises `MalformedError` over no elements, except for BOOL."""
        return self._extreme("any" if x.dtype == "BOOL" else "max", x, axes, keep)

    def min(self, x: Value, axes: Axes, keep: bool = False) -> Value:
        """Raises `MalformedError` over no elements, except for BOOL."""
        return self._extreme("all" if x.dtype == "BOOL" else "min", x, axes, keep)

    def argmax(self, x: Value, axis: int, keep: bool = False) -> Value:
        check_axes(x.shape, (axis,))
        if x.shape[axis] == 0:
            raise MalformedError("the maximum of no elements")
        array = self.library.convert(x.array, "U8") if x.dtype == "BOOL" else x.array
        place = self._made(self.library.xp.argmax, "I64", array, axis=axis, keepdims=keep)
        return Value(self.library.convert(place.array, "I64"), "I64")

    def cumsum(self, x: Value, axis: int) -> Value:
        check_axes(x.shape, (axis,))
        return self._made(self.library.xp.cumulative_sum, x.dtype, x.array, axis=axis, dtype=x.array.dtype)

    def mersenne(self, state: Value, move: Value, count: int) -> tuple[Value, Value]:
        """By NumPy, so not on traced arrays."""
        if not (self.library.is_known(state.array) and self.library.is_known(move.array)):
            raise UnavailableError(f"{self.library.name} cannot draw from a generator of PyTorch; record with `seed=1`")
        seed, skipped = self.library.storage(move.array).tolist()
        drawn = draw(self.library.storage(state.array), seed, skipped, count)
        words, after = (Value(self.library.asarray(each, "I64"), "I64") for each in drawn)
        return words, after

    def sort(self, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
        """NaN counts as the largest."""
        check_axes(x.shape, (axis,))
        order = self._order(self.flip(x, (axis,)) if descending else x, axis)
        if descending:
            order = self.flip(self.sub(x.shape[axis] - 1, order), (axis,))
        return self.take_along(x, order, axis), order

    def dot(
        self, x: Value, y: Value, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ()), short: int = 0
    ) -> Value:
        """One matrix product of stacks."""
        left, right = self._pair(x, y)
        shape = dotted(left.shape, right.shape, contract, batch)
        rows, columns = (
            tuple(axis for axis in range(len(each.shape)) if axis not in summed and axis not in kept)
            for each, summed, kept in zip((left, right), contract, batch, strict=True)
        )
        stack, k = shape[: len(batch[0])], math.prod(left.shape[axis] for axis in contract[0])
        height, width = (math.prod(shape[len(stack) :][part]) for part in (slice(len(rows)), slice(len(rows), None)))
        a = self.reshape(self.transpose(left, batch[0] + rows + contract[0]), (*stack, height, k))
        b = self.reshape(self.transpose(right, batch[1] + contract[1] + columns), (*stack, k, width))
        return self.reshape(self._made(self.library.matmul, left.dtype, a.array, b.array), shape)

    # ---- moving data

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        sides = reshaped(x.shape, shape)
        return x if sides == x.shape else self._made(self.library.xp.reshape, x.dtype, x.array, sides)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        check_broadcast(x.shape, shape)
        return self._made(self.library.xp.broadcast_to, x.dtype, x.array, tuple(shape))

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        check_lengths(x.shape, axes)
        check_axes(x.shape, axes)
        if tuple(axes) == tuple(range(len(axes))):
            return x
        return self._made(self.library.xp.permute_dims, x.dtype, x.array, tuple(axes))

    def slice(self, x: Value, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Value:
        sliced(x.shape, starts, stops, steps)
        return Value(x.array[tuple(slice(*part) for part in zip(starts, stops, steps, strict=True))], x.dtype)

    def pad(self, x: Value, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Value:
        padded(x.shape, low, high, interior)
        for axis, (before, behind, between) in enumerate(zip(low, high, interior, strict=True)):
            x = self._padded(x, self._constant(number, x.dtype), axis, before, behind, between)
        return x

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        concatenated([x.shape for x in xs], axis)
        if len({x.dtype for x in xs}) > 1:
            raise MalformedError(f"{[x.dtype for x in xs]!s:.80} do not concatenate")
        return self._made(self.library.xp.concat, xs[0].dtype, [x.array for x in xs], axis=axis)

    def flip(self, x: Value, axes: Axes) -> Value:
        check_axes(x.shape, axes)
        return self._made(self.library.xp.flip, x.dtype, x.array, axis=axes) if axes else x

    def take(self, x: Value, indices: Sequence[Value], axis: int) -> Value:
        return Value(x.array[self._index(x, indices, axis)], x.dtype)

    def take_along(self, x: Value, indices: Value, axis: int) -> Value:
        check_axes(x.shape, (axis,))
        self._check_index(indices, x.shape[axis])
        wide = self.library.convert(indices.array, "I64")
        return self._made(self.library.xp.take_along_axis, x.dtype, x.array, wide, axis=axis)

    def scatter(self, x: Value, indices: Sequence[Value], axis: int, updates: Value, add: bool) -> Value:
        """Of several updates written to one place, it is not defined which one stays."""
        index = self._index(x, indices, axis)
        if updates.dtype != x.dtype:
            raise MalformedError(f"{updates.dtype} scattered into {x.dtype}")
        updates = self.broadcast(updates, taken(x.shape, [each.shape for each in indices], axis))
        return self._made(self.library.put, x.dtype, x.array, index, updates.array, add)

    def windows(
        self, x: Value, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Value:
        windowed(x.shape, axes, sizes, strides, dilations)
        array = x.array
        for axis, size, stride, dilation in zip(axes, sizes, strides, dilations, strict=True):
            array = self.library.windows(array, axis, size, stride, dilation)
        return Value(array, x.dtype)

    # ---- precision

    def wide(self, x: Value) -> Value:
        return self.cast(x, _WIDE[x.dtype]) if x.dtype in _WIDE else x

    # ---- how

    def _held(self, dtype: str) -> str:
        """The dtype of the arrays that store elements of `dtype`."""
        return self.working if self.working is not None and dtype in FLOATS else dtype

    def _made(self, function: Callable[..., Array], into: str, *arguments: Any, **named: Any) -> Value:
        with self.library.quiet():
            result = function(*arguments, **named)
        return Value(np.asarray(result) if isinstance(result, np.generic) else result, into)

    def _pair(self, x: Operand, y: Operand) -> tuple[Value, Value]:
        if isinstance(x, Value):
            return x, self._like(y, x)
        assert isinstance(y, Value), "two numbers are no operands"
        return self._like(x, y), y

    def _like(self, x: Operand, other: Value) -> Value:
        """`x` as a constant of the dtype of `other`; raises `MalformedError` for a tensor of another."""
        if not isinstance(x, Value):
            return self._constant(x, other.dtype)
        if x.dtype != other.dtype:
            raise MalformedError(f"{x.dtype} beside {other.dtype}")
        return x

    def _constant(self, number: Number, dtype: str) -> Value:
        return Value(self.library.asarray(_rounded(number, dtype, self._held(dtype)), self._held(dtype)), dtype)

    def _reduced(self, name: str, x: Value, axes: Axes, keep: bool, **named: Any) -> Value:
        check_axes(x.shape, axes)
        if not axes:
            return x
        function = getattr(self.library.xp, name)
        return self._made(function, x.dtype, x.array, axis=tuple(axes), keepdims=keep, **named)

    def _extreme(self, name: str, x: Value, axes: Axes, keep: bool) -> Value:
        check_axes(x.shape, axes)
        if x.dtype != "BOOL" and any(x.shape[axis] == 0 for axis in axes):
            raise MalformedError("the maximum or minimum of no elements")
        return self._reduced(name, x, axes, keep)

    def _order(self, x: Value, axis: int) -> Value:
        array = self.library.convert(x.array, "U8") if x.dtype == "BOOL" else x.array
        order = self._made(self.library.xp.argsort, "I64", array, axis=axis, stable=True)
        return Value(self.library.convert(order.array, "I64"), "I64")

    def _padded(self, x: Value, constant: Value, axis: int, before: int, behind: int, between: int) -> Value:
        if between and x.shape[axis]:
            x = self._spread(x, constant, axis, between)
        sides = [_with(x.shape, axis, max(count, 0)) for count in (before, behind)]
        x = self.concat([self.broadcast(constant, sides[0]), x, self.broadcast(constant, sides[1])], axis)
        return _along(x, axis, max(-before, 0), min(behind, 0))

    def _spread(self, x: Value, constant: Value, axis: int, between: int) -> Value:
        around = (x.shape[: axis + 1], x.shape[axis + 1 :])
        gaps = self.broadcast(constant, (*around[0], between, *around[1]))
        joined = self.concat([self.reshape(x, (*around[0], 1, *around[1])), gaps], axis + 1)
        apart = self.reshape(joined, _with(x.shape, axis, x.shape[axis] * (1 + between)))
        return _along(apart, axis, 0, -between)

    def _index(self, x: Value, indices: Sequence[Value], axis: int) -> tuple[Any, ...]:
        check_axes(x.shape, tuple(range(axis, axis + len(indices))))
        broadcast_shapes([index.shape for index in indices])
        for place, index in enumerate(indices):
            self._check_index(index, x.shape[axis + place])
        return (slice(None),) * axis + tuple(self.library.convert(index.array, "I64") for index in indices)

    def _check_index(self, index: Value, side: int) -> None:
        if index.dtype in FLOATS or index.dtype == "BOOL":
            raise MalformedError(f"{index.dtype} is no index")
        if index.dtype.startswith("U"):
            self._refuse(index.array >= side, f"an index outside {side} elements")
        else:
            self._refuse((index.array < -side) | (index.array >= side), f"an index outside {side} elements")

    def _refuse(self, array: Array, what: str) -> None:
        if self.library.is_known(array) and bool(self.library.xp.any(array)):
            raise MalformedError(what)


def _cube(values: Values, x: Value) -> Value:
    return values.mul(values.mul(x, x), x)


_ROOTS_AND_PRODUCTS: Final[Mapping[float, Callable[[Values, Value], Value]]] = {
    2: lambda values, x: values.mul(x, x),
    3: _cube,
    -1: lambda values, x: values.div(1, x),
    -2: lambda values, x: values.div(1, values.mul(x, x)),
    -3: lambda values, x: values.div(1, _cube(values, x)),
    0.5: lambda values, x: values.sqrt(x),
    -0.5: lambda values, x: values.rsqrt(x),
}


def _rounded(number: Number, dtype: str, held: str) -> Any:
    """`number` rounded to `dtype`, in the storage form of `held`."""
    if dtype == "BOOL":
        return bool(number)
    if dtype not in FLOATS:
        check_number(number, dtype)
        return int(number)
    with np.errstate(all="ignore"):
        if dtype == "BF16":
            bits = round_to_bfloat16(np.asarray(_as_float(number), np.float32))
            return bits if held == "BF16" else bfloat16_to_float32(bits)
        return np.asarray(_as_float(number)).astype(numpy_dtype(dtype))


def _as_float(number: Number) -> float:
    try:
        return float(number)
    except OverflowError:
        raise MalformedError("a number larger than any float") from None


def _along(x: Value, axis: int, start: int, end: int) -> Value:
    """`x[start : side + end]` along `axis`."""
    return Value(x.array[(slice(None),) * axis + (slice(start, x.shape[axis] + end),)], x.dtype)


def _with(shape: tuple[int, ...], axis: int, side: int) -> tuple[int, ...]:
    return (*shape[:axis], side, *shape[axis + 1 :])

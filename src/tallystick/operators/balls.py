"""Running error analysis: the results of an operator, and a bound on the rounding error of any honest evaluation.

A ball is the exact result, computed in float64, and a radius. Of every primitive, the radius of the result covers what
the radii of the operands can do to it and the rounding of the primitive itself; the reference's own rounding counts as
that of one more evaluation. Where a choice depends on uncertain values (comparison, order, whole numbers cut from
floats), both outcomes stay possible. A radius is infinite where nothing is promised: an overflow in the nominal format
is possible, or a divisor may be 0. Radius 0 beside an infinity or a NaN promises just that.

Rules and derivations: docs/bounds.md; Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, §3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np

from tallystick.operators import propagation
from tallystick.operators.algebra import Axes, Comparison, Number
from tallystick.operators.arrays import Array, Library
from tallystick.operators.library import ANY
from tallystick.operators.library import Library as Figures
from tallystick.operators.precision import FORMATS, PLAIN, REFERENCE, Format, Precision
from tallystick.operators.rounding import DETERMINISTIC, Deterministic, Model, Sums
from tallystick.operators.values import Value, Values
from tallystick.tensors import Tensor, numpy_dtype

INFLATION: Final = 1 + 2.0**-30
"""Radii are computed in float64 themselves."""


@dataclass(frozen=True, eq=False)
class Ball:
    """All values within `radius` of `centre`; `radius` is `None` for exact ones, and no value is less than `least`.

    Integers and truth values are exact where the radius is 0 and unknown where it is infinite.
    """

    centre: Value
    radius: Array | None = None
    least: float = -math.inf

    @property
    def dtype(self) -> str:
        """The nominal dtype."""
        return self.centre.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides."""
        return self.centre.shape

    @property
    def array(self) -> Array:
        """The centre's elements; floats in float64."""
        return self.centre.array

    @property
    def width(self) -> Array | float:
        """The radius, or 0."""
        return 0.0 if self.radius is None else self.radius


_WIDE_RANGE: Final = 64

Operand: TypeAlias = "Ball | Number"
Move: TypeAlias = Callable[[Value], Value]


@dataclass(frozen=True)
class Balls:
    """The algebra of balls over one array library, for devices of one precision and one table of library figures.

    `rescaling` is how many roundings a running sum goes through between tiles, for fused kernels that rescale it. With
    `regrouped`, factors may be multiplied in another order, so that one near the ends of the range may be lost; with
    `step`, every F32 result may be rounded to that dtype.
    """

    library: Library
    precision: Precision = PLAIN
    model: Model = DETERMINISTIC
    figures: Figures = ANY
    rescaling: int = 0
    regrouped: bool = False
    step: str | None = None

    @cached_property
    def values(self) -> Values:
        """The algebra of the centres."""
        return Values(self.library, "F64")

    @property
    def xp(self) -> Any:
        """The array namespace."""
        return self.library.xp

    def load(self, tensor: Tensor) -> Ball:
        """The elements of a tensor, exactly."""
        return Ball(self.values.load(tensor))

    # ---- values from nothing

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> Ball:
        """See `Algebra.full`."""
        return self.broadcast(self._constant(number, dtype), shape)

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> Ball:
        """See `Algebra.iota`."""
        return Ball(self.values.iota(shape, axis, dtype), least=0.0)

    # ---- one element at a time: exact ones, and steps

    def cast(self, x: Ball, dtype: str) -> Ball:
        """See `Algebra.cast`; of floats cut to integers, those are unknown that may be several, or do not fit."""
        centre = self.values.cast(x.centre, dtype)
        if dtype == x.dtype:
            return x
        if dtype == "BOOL":
            return self.compare(x, 0, "ne")
        if dtype not in FORMATS:
            return self._discrete(centre, x) if x.dtype not in FORMATS else self._cut(x, centre)
        if x.dtype in FORMATS:
            return self._narrowed(x, centre)
        return self._counted(x, centre)

    def neg(self, x: Ball) -> Ball:
        """See `Algebra.neg`."""
        return Ball(self.values.neg(x.centre), x.radius)

    def abs(self, x: Ball) -> Ball:
        """See `Algebra.abs`."""
        return Ball(self.values.abs(x.centre), x.radius, 0.0)

    def sign(self, x: Ball) -> Ball:
        """See `Algebra.sign`."""
        return self._step(x, self.values.sign(x.centre), "sign")

    def floor(self, x: Ball) -> Ball:
        """See `Algebra.floor`."""
        return self._step(x, self.values.floor(x.centre), "floor")

    def ceil(self, x: Ball) -> Ball:
        """See `Algebra.ceil`."""
        return self._step(x, self.values.ceil(x.centre), "ceil")

    def trunc(self, x: Ball) -> Ball:
        """See `Algebra.trunc`."""
        return self._step(x, self.values.trunc(x.centre), "trunc")

    def round(self, x: Ball) -> Ball:
        """See `Algebra.round`."""
        return self._step(x, self.values.round(x.centre), "round")

    # ---- one element at a time: library functions

    def sqrt(self, x: Ball) -> Ball:
        """See `Algebra.sqrt`."""
        return self._function("sqrt", x, 0.0)

    def rsqrt(self, x: Ball) -> Ball:
        """See `Algebra.rsqrt`."""
        return self._function("rsqrt", x, 0.0)

    def exp(self, x: Ball) -> Ball:
        """See `Algebra.exp`."""
        return self._function("exp", x, 0.0)

    def expm1(self, x: Ball) -> Ball:
        """See `Algebra.expm1`."""
        return self._function("expm1", x)

    def log(self, x: Ball) -> Ball:
        """See `Algebra.log`."""
        return self._function("log", x)

    def log1p(self, x: Ball) -> Ball:
        """See `Algebra.log1p`."""
        return self._function("log1p", x)

    def sin(self, x: Ball) -> Ball:
        """See `Algebra.sin`."""
        return self._function("sin", x)

    def cos(self, x: Ball) -> Ball:
        """See `Algebra.cos`."""
        return self._function("cos", x)

    def tanh(self, x: Ball) -> Ball:
        """See `Algebra.tanh`."""
        return self._function("tanh", x)

    def erf(self, x: Ball) -> Ball:
        """See `Algebra.erf`."""
        return self._function("erf", x)

    def sigmoid(self, x: Ball) -> Ball:
        """See `Algebra.sigmoid`."""
        return self._function("sigmoid", x, 0.0)

    def is_finite(self, x: Ball) -> Ball:
        """See `Algebra.is_finite`; unknown where the radius is infinite."""
        return self._discrete(self.values.is_finite(x.centre), x)

    # ---- one element at a time: arithmetic

    def add(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.add`."""
        x, y = self._pair(x, y)
        centre = self.values.add(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        low = (x.least + y.least) * (1 - 2 * FORMATS[x.dtype].unit) if min(x.least, y.least) >= 0 else -math.inf
        return self._rounded(centre, self._read(x) + self._read(y), (x, y), least=low)

    def sub(self, x: Operand, y: Operand) -> Ball:
        """See `Algebra.sub`."""
        x, y = self._pair(x, y)
        centre = self.values.sub(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        return self._rounded(centre, self._read(x) + self._read(y), (x, y))

    def mul(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.mul`; a square is never negative."""
        square = x is y
        x, y = self._pair(x, y)
        centre = self.values.mul(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        r, s = self._factor(x), self._factor(y)
        spread = propagation.product(self.xp, x.array, r, y.array, s) + self._regrouping(x.dtype)
        low = 0.0 if square or min(x.least, y.least) >= 0 else -math.inf
        return self._rounded(centre, spread, (x, y), least=low, doubt=self._vanishing(x, r, y, s))

    def div(self, x: Operand, y: Operand) -> Ball:
        """See `Algebra.div`; two roundings where the divisor serves many elements: kernels multiply by 1 / y."""
        x, y = self._pair(x, y)
        centre = self.values.div(x.centre, y.centre)
        r, s = self._factor(x), self._factor(y)
        spread = propagation.quotient(self.xp, x.array, r, y.array, s, y.least) + self._regrouping(x.dtype)
        units = 1.0 if y.shape == centre.shape and y.shape else 2.0
        low = 0.0 if min(x.least, y.least) >= 0 else -math.inf
        doubt = ((abs(y.array) <= s) & self._some(s)) | (self.xp.isinf(centre.array) & (y.array == 0))
        return self._rounded(centre, spread, (x, y), units, low, doubt)

    def pow(self, x: Operand, y: Operand) -> Ball:
        """See `Algebra.pow`."""
        number = y if isinstance(y, int | float) else None
        x, y = self._pair(x, y)
        centre = self.values.pow(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        r, s = self._read(x), self._read(y)
        if number is not None and number >= 1:
            spread = propagation.whole_power(self.xp, x.array, r, float(number))
            spread = spread + propagation.exponent_moved(self.xp, centre.array, x.array, r, s)
        else:
            spread = propagation.power(self.xp, x.array, r, y.array, s, x.least)
        is_even = number is not None and number % 2 == 0
        low = 0.0 if is_even or x.least >= 0 else -math.inf
        doubt = self._some(s) | self._some(r)
        result = self._rounded(centre, spread, (x, y), self._power_units(number), low, doubt)
        return self._open(result, self._is_one_of_any_power(x, r, y, s))

    def _is_one_of_any_power(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array:
        """1 to the power NaN and NaN to the power 0 are 1: where a ball only reaches that 1 or 0."""
        base = (y.array != y.array) & (abs(x.array - 1) <= r) & self._some(r)
        return base | ((x.array != x.array) & (abs(y.array) <= s) & self._some(s))

    def maximum(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.maximum`."""
        x, y = self._pair(x, y)
        return replace(self._extreme(x, y, "maximum"), least=max(x.least, y.least))

    def minimum(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.minimum`."""
        x, y = self._pair(x, y)
        return replace(self._extreme(x, y, "minimum"), least=min(x.least, y.least))

    def floor_divide(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.floor_divide`."""
        x, y = self._pair(x, y)
        return self._discrete(self.values.floor_divide(x.centre, y.centre), x, y)

    def remainder(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.remainder`."""
        x, y = self._pair(x, y)
        return self._discrete(self.values.remainder(x.centre, y.centre), x, y)

    def compare(self, x: Ball, y: Operand, how: Comparison) -> Ball:
        """See `Algebra.compare`; unknown where the balls overlap."""
        x, y = self._pair(x, y)
        centre = self.values.compare(x.centre, y.centre, how)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        r, s = self._read(x), self._read(y)
        if self._is_exact(r) and self._is_exact(s):
            return Ball(centre)
        apart = (abs(x.array - y.array) > r + s) | ((r == 0) & (s == 0))
        known = apart | ((x.array != x.array) | (y.array != y.array)) & self._finite(r + s)
        return Ball(centre, self._unless(known, centre))

    def logical_and(self, x: Ball, y: Ball) -> Ball:
        """See `Algebra.logical_and`."""
        return self._logical(self.values.logical_and(x.centre, y.centre), x, y, decides=False)

    def logical_or(self, x: Ball, y: Ball) -> Ball:
        """See `Algebra.logical_or`."""
        return self._logical(self.values.logical_or(x.centre, y.centre), x, y, decides=True)

    def logical_xor(self, x: Ball, y: Ball) -> Ball:
        """See `Algebra.logical_xor`."""
        return self._discrete(self.values.logical_xor(x.centre, y.centre), x, y)

    def logical_not(self, x: Ball) -> Ball:
        """See `Algebra.logical_not`."""
        return self._discrete(self.values.logical_not(x.centre), x)

    def shift_left(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.shift_left`."""
        x, y = self._pair(x, y)
        return self._discrete(self.values.shift_left(x.centre, y.centre), x, y)

    def shift_right(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.shift_right`."""
        x, y = self._pair(x, y)
        return self._discrete(self.values.shift_right(x.centre, y.centre), x, y)

    def where(self, condition: Ball, x: Operand, y: Operand) -> Ball:
        """See `Algebra.where`; where the condition is unknown, the ball reaches both branches."""
        x, y = self._pair(x, y)
        centre = self.values.where(condition.centre, x.centre, y.centre)
        least = min(x.least, y.least)
        if condition.radius is None and x.radius is None and y.radius is None:
            return Ball(centre, least=least)
        r, s = self._lift(x.width), self._lift(y.width)
        radius = self.xp.where(condition.array, r, s)
        if condition.radius is not None:
            apart = self._apart(x, y)
            either = self._larger(r + 0 * apart, s + 0 * apart) + apart
            radius = self.xp.where(condition.radius > 0, either, radius)
        return Ball(centre, self._spread_over(radius, centre), least)

    # ---- many elements to one

    def sum(self, x: Ball, axes: Axes, keep: bool = False) -> Ball:
        """See `Algebra.sum`."""
        centre = self.values.sum(x.centre, axes, keep)
        if x.dtype not in FORMATS:
            return self._reduced_discrete(centre, x, axes, keep)
        terms = math.prod(x.shape[axis] for axis in axes)
        return self._accumulated(centre, x, terms, lambda array: self._total(array, axes, keep))

    def prod(self, x: Ball, axes: Axes, keep: bool = False) -> Ball:
        """See `Algebra.prod`; infinite where some order of multiplication overflows or underflows."""
        centre = self.values.prod(x.centre, axes, keep)
        if x.dtype not in FORMATS:
            return self._reduced_discrete(centre, x, axes, keep)
        form, size = self._form(x.dtype), abs(x.array) + self._read(x)
        factor = Sums(math.prod(x.shape[axis] for axis in axes), form.unit, 0.0, 1.0, lambda: 0.0, products=True)
        largest = self._product(self.xp.where(size > 1, size, 1.0), axes, keep)
        smallest = self._product(self.xp.where((size < 1) & (size > 0), size, 1.0), axes, keep)
        high = self._product(size, axes, keep)
        radius = (high - abs(centre.array)) + (Deterministic().spread(factor, self.library) + 2.0**-50) * high
        within = (largest < form.largest) & (smallest > form.smallest_normal)
        return Ball(centre, self.xp.where(within & self._finite(centre.array), radius * INFLATION, math.inf))

    def max(self, x: Ball, axes: Axes, keep: bool = False) -> Ball:
        """See `Algebra.max`."""
        return self._extreme_of(self.values.max, x, axes, keep)

    def min(self, x: Ball, axes: Axes, keep: bool = False) -> Ball:
        """See `Algebra.min`."""
        return self._extreme_of(self.values.min, x, axes, keep)

    def argmax(self, x: Ball, axis: int, keep: bool = False) -> Ball:
        """See `Algebra.argmax`; unknown where several balls reach the maximum, unless exact, and beside NaN."""
        centre = self.values.argmax(x.centre, axis, keep)
        r = self._read(x) if x.dtype in FORMATS else x.width
        array = self.library.convert(x.array, "F64")
        unsure = (array != array) | self._some(r)
        if not bool(self.xp.any(unsure)):
            return Ball(centre)
        top = self.xp.max(array - r, axis=axis, keepdims=True)
        reaching = ~(array + r < top)
        crowd, doubt = (
            self._total(self.library.convert(each, "F64"), (axis,), keep) for each in (reaching, reaching & unsure)
        )
        return Ball(centre, self._unless((crowd < 2) | (doubt == 0), centre))

    def cumsum(self, x: Ball, axis: int) -> Ball:
        """See `Algebra.cumsum`."""
        centre = self.values.cumsum(x.centre, axis)
        if x.dtype not in FORMATS:
            return self._if_exact(centre, x) or self._unknown(centre)
        terms = np.arange(1, x.shape[axis] + 1).reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
        return self._accumulated(centre, x, terms, lambda array: self._running(array, axis))

    def sort(self, x: Ball, axis: int, descending: bool) -> tuple[Ball, Ball]:
        """See `Algebra.sort`; an index is unknown where neighbours overlap or are equal."""
        centre, order = self.values.sort(x.centre, axis, descending)
        if x.dtype not in FORMATS:
            return Ball(centre, x.radius), Ball(order, self._ties(centre, 0.0, axis))
        if x.radius is None:
            unordered = self._among_zeros(centre, self._read(x), 0.0)
            return Ball(centre, unordered, x.least), Ball(order, self._ties(centre, self._widest(self._read(x)), axis))
        low, high = (self._sorted(x.array + side * x.radius, axis, descending) for side in (-1.0, 1.0))
        radius = self._among_zeros(centre, self._read(x), self._hull(centre.array, low, high))
        return Ball(centre, radius, x.least), Ball(order, self._ties(centre, self._widest(self._read(x)), axis))

    def dot(self, x: Ball, y: Ball, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ())) -> Ball:
        """See `Algebra.dot`."""
        centre = self.values.dot(x.centre, y.centre, contract, batch)
        if x.dtype not in FORMATS:
            return self._if_exact(centre, x, y) or self._unknown(centre)

        def product(a: Array, b: Array) -> Array:
            return self.values.dot(Value(a, "F64"), Value(b, "F64"), contract, batch).array

        r, s = self._multiplied(x), self._multiplied(y)
        exact, a, b = self._is_exact(r) and self._is_exact(s), self._finite_size(x), self._finite_size(y)
        r, s = self._full(r, x), self._full(s, y)
        spread = 0.0 if exact else product(a, s) + product(r, b + s)
        magnitude = product(a, b) if exact else product(a + r, b + s)
        sums = Sums(
            terms=math.prod(x.shape[axis] for axis in contract[0]),
            unit=self.precision.accumulator(x.dtype).unit,
            value=self._size(centre) + spread,
            magnitude=magnitude,
            norm=lambda: self.xp.sqrt(product(a * a, b * b)) + spread,
            products=True,
            rescaling=self.rescaling,
        )
        low = 0.0 if min(x.least, y.least) >= 0 else -math.inf
        return self._summed(centre, sums, spread, low)

    # ---- moving data

    def reshape(self, x: Ball, shape: Sequence[int]) -> Ball:
        """See `Algebra.reshape`."""
        return self._moved(x, lambda value: self.values.reshape(value, shape))

    def broadcast(self, x: Ball, shape: Sequence[int]) -> Ball:
        """See `Algebra.broadcast`."""
        return self._moved(x, lambda value: self.values.broadcast(value, shape))

    def transpose(self, x: Ball, axes: Sequence[int]) -> Ball:
        """See `Algebra.transpose`."""
        return self._moved(x, lambda value: self.values.transpose(value, axes))

    def slice(self, x: Ball, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Ball:
        """See `Algebra.slice`."""
        return self._moved(x, lambda value: self.values.slice(value, starts, stops, steps))

    def pad(self, x: Ball, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Ball:
        """See `Algebra.pad`."""
        constant = self._constant(number, x.dtype)
        around = 0.0 if constant.radius is None else float(self.xp.max(constant.radius))
        if around and x.radius is None:
            x = replace(x, radius=self._full(0.0, x))
        centre = self.values.pad(x.centre, number, low, high, interior)
        radius = None if x.radius is None else self._over(x.radius, self.values.pad, around, low, high, interior)
        return Ball(centre, radius, min(x.least, constant.least))

    def concat(self, xs: Sequence[Ball], axis: int) -> Ball:
        """See `Algebra.concat`."""
        centre = self.values.concat([x.centre for x in xs], axis)
        least = min(x.least for x in xs)
        if all(x.radius is None for x in xs):
            return Ball(centre, least=least)
        radii = [Value(self._full(x.width, x), "F64") for x in xs]
        return Ball(centre, self.values.concat(radii, axis).array, least)

    def flip(self, x: Ball, axes: Axes) -> Ball:
        """See `Algebra.flip`."""
        return self._moved(x, lambda value: self.values.flip(value, axes))

    def take(self, x: Ball, indices: Sequence[Ball], axis: int) -> Ball:
        """See `Algebra.take`; nothing is known where an index is not."""
        places = [index.centre for index in indices]
        result = self._moved(x, lambda value: self.values.take(value, places, axis))
        unsure = [index.radius for index in indices if index.radius is not None]
        if not unsure:
            return result
        shape = np.broadcast_shapes(*(index.shape for index in indices))
        doubt = self.xp.broadcast_to(sum(unsure[1:], unsure[0]), shape)
        doubt = self.xp.reshape(doubt, (*shape, *[1] * (len(x.shape) - axis - len(indices))))
        return replace(result, radius=self._full(result.width, result) + doubt)

    def take_along(self, x: Ball, indices: Ball, axis: int) -> Ball:
        """See `Algebra.take_along`."""
        result = self._moved(x, lambda value: self.values.take_along(value, indices.centre, axis))
        if indices.radius is None:
            return result
        return replace(result, radius=self._full(result.width, result) + indices.radius)

    def scatter(self, x: Ball, indices: Sequence[Ball], axis: int, updates: Ball, add: bool) -> Ball:
        """See `Algebra.scatter`; nothing is known where two updates are written to one place."""
        places = [index.centre for index in indices]
        centre = self.values.scatter(x.centre, places, axis, updates.centre, add)
        if any(index.radius is not None for index in indices):
            return self._unknown(centre)

        def put(base: Array, array: Array, add: bool = add) -> Array:
            array = self._spread_over(array, updates.centre)
            return self.values.scatter(Value(base, "F64"), places, axis, Value(array, "F64"), add).array

        counts = put(self._full(0.0, x), self._full(1.0, updates), add=True)
        if not add or x.dtype not in FORMATS:
            radius = put(self._full(x.width, x), self._full(updates.width, updates))
            return self._collided(centre, x, updates, radius, counts, add)
        r, s = self._full(self._read(x), x), self._full(self._read(updates), updates)
        a, b = self._finite_size(x), self._finite_size(updates)
        spread = put(r, s)
        sums = Sums(
            terms=self.library.storage(counts) + 1,
            unit=self.precision.accumulator(x.dtype).unit,
            value=self._size(centre) + spread,
            magnitude=put(a + r, b + s),
            norm=lambda: self.xp.sqrt(put(a * a, b * b)) + spread,
        )
        result = self._summed(centre, sums, spread, 0.0 if min(x.least, updates.least) >= 0 else -math.inf)
        radius = self.xp.where(counts > 0, result.width, self._full(x.width, x))
        return replace(result, radius=radius)

    def windows(
        self, x: Ball, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Ball:
        """See `Algebra.windows`."""
        return self._moved(x, lambda value: self.values.windows(value, axes, sizes, strides, dilations))

    # ---- precision

    def wide(self, x: Ball) -> Ball:
        """See `Algebra.wide`."""
        return Ball(self.values.wide(x.centre), x.radius, x.least)

    # ---- rounding, once the centre and the spread are known

    def _rounded(
        self,
        centre: Value,
        spread: Array | float,
        sources: Sequence[Ball],
        units: float = 1.0,
        least: float = -math.inf,
        doubt: Array | bool = False,
        pole: Array | bool = False,
    ) -> Ball:
        """`units` roundings of a result that itself may lie `spread` beside its centre."""
        form, v = self._form(centre.dtype), centre.array
        relative = units * (form.unit + REFERENCE.unit)
        underflow = units * max(self.precision.underflow(centre.dtype), form.half_step)
        radius = (spread + relative * (1 + relative) * (abs(v) + spread)) * INFLATION
        may_underflow = True if centre.dtype == "F64" else radius > 0
        radius = radius + self.xp.where(self._lift_bool(may_underflow), underflow, 0.0)
        for source in sources:
            if source.radius is not None:
                radius = radius + 0.0 * source.radius
        radius = self.xp.where(abs(v) + radius < form.largest, radius, math.inf)
        if bool(self.xp.any(~self.xp.isfinite(v))):
            radius = self.xp.where(self._certain(v, sources, doubt) | pole, 0.0, radius)
        return Ball(centre, radius, least)

    def _certain(self, v: Array, sources: Sequence[Ball], doubt: Array | bool) -> Array:
        """Where an infinity or NaN follows from the operands: from infinite ones, or from an invalid operation."""
        wild: Array | bool = False
        finite: Array | bool = True
        exact: Array | bool = True
        for source in sources:
            wild = wild | ~self.xp.isfinite(source.array)
            finite = finite & (self._lift(source.width) < math.inf)
            exact = exact & (self._lift(self._read(source)) == 0)
        inherited = wild & finite & ~self._lift_bool(doubt)
        return ~self.xp.isfinite(v) & (inherited | ((v != v) & (exact | (finite & self._any_nan(sources)))))

    def _any_nan(self, sources: Sequence[Ball]) -> Array | bool:
        found: Array | bool = False
        for source in sources:
            found = found | (source.array != source.array)
        return found

    def _function(self, name: str, x: Ball, least: float = -math.inf) -> Ball:
        centre = getattr(self.values, name)(x.centre)
        r = self._read(x)
        spread = 0.0 if self._is_exact(r) else propagation.PROPAGATIONS[name](self.xp, x.array, r, x.least)
        pole = (x.array == 0) & (self._lift(x.width) == 0) if name == "log" else False
        doubt = self.xp.isinf(centre.array) & (x.array == 0)
        spread = spread + self.figures.absolute.get(name, 0.0)
        return self._rounded(centre, spread, (x,), 2 * self.figures.ulps[name], least, doubt, pole)

    def _narrowed(self, x: Ball, centre: Value) -> Ball:
        """Between float dtypes: a wider one holds every value of a narrower one."""
        old, new = FORMATS[x.dtype], FORMATS[centre.dtype]
        if new.bits >= old.bits and new.exponent_max >= old.exponent_max:
            return Ball(centre, x.radius, x.least)
        least = x.least * (1 - 2 * new.unit) if x.least >= 0 else -math.inf
        return self._rounded(centre, x.width, (x,), 1.0, least)

    def _counted(self, x: Ball, centre: Value) -> Ball:
        """From integers and truth values: rounded where they have more digits than the format."""
        if x.dtype == "BOOL":
            return Ball(centre, None if x.radius is None else self.xp.where(x.radius > 0, 1.0, 0.0), 0.0)
        form = FORMATS[centre.dtype]
        rounding = self.xp.where(abs(centre.array) > 2.0**form.bits, form.unit * abs(centre.array), 0.0)
        radius = rounding + x.width
        return Ball(centre, self.xp.where(abs(centre.array) < form.largest, radius, math.inf), x.least)

    def _power_units(self, number: Number | None) -> float:
        """At most 4 roundings for small whole numbers and roots."""
        if number is not None and (number in (0.5, -0.5) or (float(number).is_integer() and abs(number) <= 3)):
            return 4.0
        return 2 * self.figures.ulps["pow"]

    def _accumulated(self, centre: Value, x: Ball, terms: Any, total: Callable[[Array], Array]) -> Ball:
        """Sums of one tensor's elements; `total` adds arrays up in the same way."""
        r = self._read(x)
        size = self._finite_size(x)
        spread = 0.0 if self._is_exact(r) else total(self._full(r, x))
        sums = Sums(
            terms=terms,
            unit=self.precision.accumulator(x.dtype).unit,
            value=self._size(centre) + spread,
            magnitude=total(size) + spread,
            norm=lambda: self.xp.sqrt(total(size * size)) + spread,
            rescaling=self.rescaling,
        )
        return self._summed(centre, sums, spread, 0.0 if x.least >= 0 else -math.inf)

    def _summed(self, centre: Value, sums: Sums, spread: Array | float, least: float) -> Ball:
        """The ball of sums: infinite where partial sums may overflow, and sure of infinities among terms.

        Among products it is sure of nothing: kernels pad with zeros, and 0 · ∞ is no number.
        """
        form = self._form(centre.dtype)
        limit = min(form.largest, self.precision.accumulator(centre.dtype).largest)
        radius = (self.model.spread(sums, self.library) + spread * (1 + form.unit)) * INFLATION
        lost = (
            max(self.precision.underflow(centre.dtype), form.half_step)
            * 2.0
            * np.maximum(np.asarray(sums.terms, np.float64), 0.0)
        )
        radius = radius + self._lifted(lost) * self.library.convert(sums.magnitude > 0, "F64")
        if self.step is not None:
            radius = radius + 2 * form.unit * (self._size(centre) + radius)
        radius = self.xp.where(self.xp.isfinite(centre.array), radius, math.inf if sums.products else 0.0)
        radius = self.xp.where((sums.magnitude * 1.01 < limit) & (radius < math.inf), radius, math.inf)
        return Ball(centre, self._spread_over(radius, centre), least)

    def _collided(self, centre: Value, x: Ball, updates: Ball, radius: Array, counts: Array, add: bool) -> Ball:
        if not add:
            radius = self.xp.where(counts > 1, math.inf, radius)
        elif x.dtype not in FORMATS:
            radius = self.xp.where(radius > 0, math.inf, 0.0)
        return Ball(centre, radius, min(x.least, updates.least))

    # ---- what an honest device may read in an operand

    def _read(self, x: Ball) -> Array | float:
        """The radius, grown over 0 where the device may take a subnormal operand for 0."""
        return self._lost_below(x, self.precision.read_as_zero(x.dtype))

    def _factor(self, x: Ball) -> Array | float:
        """As `_read`, of an operand that is multiplied: regrouped products may underflow or overflow early."""
        if not self.regrouped:
            return self._read(x)
        form = self._form(x.dtype)
        edge = 2.0 ** ((form.exponent_max - 1) // 2)
        r = self._read(x) if form.exponent_max < _WIDE_RANGE else self._lost_below(x, 1 / edge)
        far = (abs(x.array) >= edge) & self.xp.isfinite(x.array)
        return self.xp.where(far, math.inf, r) if bool(self.xp.any(far)) else r

    def _regrouping(self, dtype: str) -> float:
        """What a product among subnormals, multiplied by a further factor, may lose in a format of little range."""
        form = self._form(dtype)
        is_lost = self.regrouped and form.exponent_max < _WIDE_RANGE
        return form.half_step * 2.0 ** ((form.exponent_max - 1) // 2) if is_lost else 0.0

    def _lost_below(self, x: Ball, tiny: float) -> Array | float:
        size = abs(x.array)
        near = (size - x.width < tiny) & ((size > 0) | self._some(x.width))
        if not bool(self.xp.any(near)):
            return x.width
        return self.xp.where(near, x.width + self.xp.where(size + x.width < tiny, size + x.width, tiny), x.width)

    def _multiplied(self, x: Ball) -> Array | float:
        """As `_read`, and rounded to the format in which products are formed; elements that have it stay exact."""
        r, form = self._factor(x), self.precision.multiplier(x.dtype)
        if form is None:
            return r
        split = x.array * (2.0 ** (REFERENCE.bits - form.bits) + 1)
        coarse = split - (split - x.array)
        changed = (coarse != x.array) | (self._lift(r) > 0)
        return r + self.xp.where(changed, 2 * form.unit * (abs(x.array) + r), 0.0)

    def _finite_size(self, x: Ball) -> Array:
        """|x|, with 0 for infinities and NaN."""
        return self.xp.where(self.xp.isfinite(x.array), abs(x.array), 0.0)

    def _size(self, centre: Value) -> Array:
        return self.xp.where(self.xp.isfinite(centre.array), abs(centre.array), 0.0)

    def _vanishing(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array | bool:
        """Where a factor may be 0 or not, which decides what becomes of an infinity."""
        if self._is_exact(r) and self._is_exact(s):
            return False
        return ((abs(x.array) <= r) & self._some(r)) | ((abs(y.array) <= s) & self._some(s))

    # ---- choices

    def _step(self, x: Ball, centre: Value, name: str) -> Ball:
        """A monotone step function: the ball reaches the steps at both ends."""
        if x.radius is None:
            return Ball(centre, least=x.least if name == "trunc" and x.least >= 0 else -math.inf)
        low, high = (getattr(self.xp, name)(x.array + side * x.radius) for side in (-1.0, 1.0))
        wide = self.library.convert(centre.array, "F64")
        radius = self._hull(getattr(self.xp, name)(x.array), low, high) + 0 * wide
        if centre.dtype in FORMATS:
            return Ball(centre, self._settled(centre, radius, x))
        return Ball(centre, self._unless(radius == 0, centre))

    def _cut(self, x: Ball, centre: Value) -> Ball:
        """Floats as integers; C leaves open what becomes of those that the type does not hold."""
        limits = np.iinfo(numpy_dtype(centre.dtype))
        fits = (x.array > float(limits.min) - 1) & (x.array < float(limits.max))
        found = self._step(x, centre, "trunc")
        if bool(self.xp.all(fits)):
            return found
        return replace(found, radius=self.xp.where(fits, self._full(found.width, found), math.inf))

    def _settled(self, centre: Value, radius: Array, *sources: Ball) -> Array:
        """The radius, 0 beside infinities and NaN that are sure, infinite where it is no number."""
        radius = self.xp.where(radius < math.inf, radius, math.inf)
        sure: Array | bool = ~self.xp.isfinite(centre.array)
        for source in sources:
            sure = sure & (self._lift(source.width) < math.inf)
        return self.xp.where(sure, 0.0, radius)

    def _extreme(self, x: Ball, y: Ball, name: str) -> Ball:
        centre = getattr(self.values, name)(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        choose = getattr(self.xp, name)
        r, s = self._read(x), self._read(y)
        if self._is_exact(r) and self._is_exact(s):
            return Ball(centre)
        low, high = choose(x.array - r, y.array - s), choose(x.array + r, y.array + s)
        radius = self._among_zeros(centre, r + s, self._hull(centre.array, low, high))
        return Ball(centre, self._settled(centre, radius, x, y))

    def _extreme_of(self, reduce: Callable[[Value, Axes, bool], Value], x: Ball, axes: Axes, keep: bool) -> Ball:
        centre = reduce(x.centre, axes, keep)
        if x.dtype not in FORMATS:
            return self._reduced_discrete(centre, x, axes, keep)
        r = self._read(x)
        if self._is_exact(r):
            return Ball(centre, least=x.least)
        low, high = (reduce(Value(x.array + side * r, "F64"), axes, keep).array for side in (-1.0, 1.0))
        radius = self._among_zeros(centre, r, self._hull(centre.array, low, high))
        unknown = self._total(self.library.convert(~(self._full(r, x) < math.inf), "F64"), axes, keep)
        sure = ~self.xp.isfinite(centre.array) & (unknown == 0)
        radius = self.xp.where(sure, 0.0, self.xp.where(radius < math.inf, radius, math.inf))
        return Ball(centre, self._spread_over(radius, centre), x.least)

    def _among_zeros(self, centre: Value, r: Array | float, radius: Array | float) -> Array | None:
        """Numbers that are all read as 0 may come in any order."""
        if self._is_exact(r):
            return None if self._is_exact(radius) else radius
        tiny = self.precision.read_as_zero(centre.dtype)
        reach = self.xp.where(abs(centre.array) < tiny, tiny + abs(centre.array), 0.0)
        return self._larger(self._spread_over(radius, centre), reach)

    def _ties(self, ordered: Value, width: float, axis: int) -> Array | None:
        """Infinite where a neighbour in the order is no farther than two radii away."""
        array, side = self.library.convert(ordered.array, "F64"), ordered.shape[axis]
        if side < 2:
            return None
        ahead = self.values.slice(Value(array, "F64"), *_span(ordered.shape, axis, 1, side)).array
        behind = self.values.slice(Value(array, "F64"), *_span(ordered.shape, axis, 0, side - 1)).array
        close = self.library.convert(~(abs(ahead - behind) > 2 * width), "F64")
        if not bool(self.xp.any(close > 0)):
            return None
        one, none = _at(ordered.shape, axis, 1), _at(ordered.shape, axis, 0)
        tied = self._over(close, self.values.pad, 0.0, one, none, none)
        tied = tied + self._over(close, self.values.pad, 0.0, none, one, none)
        return self.xp.where(tied > 0, math.inf, 0.0)

    def _logical(self, centre: Value, x: Ball, y: Ball, decides: bool) -> Ball:
        """`decides` on one side makes the other side irrelevant."""
        if x.radius is None and y.radius is None:
            return Ball(centre)
        if x.dtype != "BOOL":
            return self._discrete(centre, x, y)
        r, s = self._lift(x.width) > 0, self._lift(y.width) > 0
        decided = ((x.array == decides) & ~r) | ((y.array == decides) & ~s)
        return Ball(centre, self._unless(decided | (~r & ~s), centre))

    def _discrete(self, centre: Value, *sources: Ball) -> Ball:
        """Unknown wherever a source is."""
        radii = [source.radius for source in sources if source.radius is not None]
        if not radii:
            return Ball(centre)
        known = self._lift_bool(True)
        for source in sources:
            if source.radius is not None:
                known = known & ((source.radius == 0) if source.dtype not in FORMATS else (source.radius < math.inf))
        return Ball(centre, self._unless(known, centre))

    def _reduced_discrete(self, centre: Value, x: Ball, axes: Axes, keep: bool) -> Ball:
        if x.radius is None:
            return Ball(centre)
        unknown = self._total(self.library.convert(x.radius > 0, "F64"), axes, keep)
        return Ball(centre, self._unless(unknown == 0, centre))

    def _if_exact(self, centre: Value, *sources: Ball) -> Ball | None:
        return Ball(centre) if all(source.radius is None for source in sources) else None

    def _open(self, x: Ball, doubt: Array) -> Ball:
        """`x`, and nothing is promised where there is a doubt."""
        if not bool(self.xp.any(doubt)):
            return x
        return replace(x, radius=self.xp.where(doubt, math.inf, self._full(x.width, x)))

    def _unknown(self, centre: Value) -> Ball:
        return Ball(centre, self._spread_over(math.inf, centre))

    def _unless(self, known: Array, centre: Value) -> Array:
        return self._spread_over(self.xp.where(known, 0.0, math.inf), centre)

    # ---- arrays

    def _form(self, dtype: str) -> Format:
        """The format to which results of `dtype` may be rounded."""
        return FORMATS[self.step if self.step is not None and dtype == "F32" else dtype]

    def _pair(self, x: Operand, y: Operand) -> tuple[Ball, Ball]:
        if isinstance(x, Ball):
            return x, y if isinstance(y, Ball) else self._constant(y, x.dtype)
        assert isinstance(y, Ball), "two numbers are no operands"
        return self._constant(x, y.dtype), y

    def _constant(self, number: Number, dtype: str) -> Ball:
        """A number as an element of `dtype`, or unrounded, as some kernels keep it."""
        centre = self.values.full((), number, dtype)
        if dtype not in FORMATS:
            return Ball(centre)
        held = float(centre.array)
        gap = abs(held - float(number)) if math.isfinite(held) else 0.0
        gap += 0.0 if self.step is None else _loss(held, self._form(dtype))
        least = held - gap if held >= gap else -math.inf
        return Ball(centre, self.library.asarray(gap * INFLATION, "F64") if gap > 0 else None, least)

    def _moved(self, x: Ball, move: Move) -> Ball:
        radius = None if x.radius is None else move(Value(x.radius, "F64")).array
        return Ball(move(x.centre), radius, x.least)

    def _over(self, radius: Array, move: Callable[..., Value], *arguments: Any) -> Array:
        return move(Value(radius, "F64"), *arguments).array

    def _apart(self, x: Ball, y: Ball) -> Array:
        """|x − y|; 0 between equal infinities."""
        a, b = (self.library.convert(ball.array, "F64") for ball in (x, y))
        return self.xp.where(a == b, 0.0, abs(a - b))

    def _total(self, array: Array, axes: Axes, keep: bool) -> Array:
        return self.values.sum(Value(array, "F64"), axes, keep).array

    def _product(self, array: Array, axes: Axes, keep: bool) -> Array:
        return self.values.prod(Value(array, "F64"), axes, keep).array

    def _running(self, array: Array, axis: int) -> Array:
        return self.values.cumsum(Value(array, "F64"), axis).array

    def _sorted(self, array: Array, axis: int, descending: bool) -> Array:
        return self.values.sort(Value(array, "F64"), axis, descending)[0].array

    def _hull(self, value: Array, low: Array, high: Array) -> Array:
        """Ends may be rounded themselves."""
        reach = propagation.hull(self.xp, value, low, high)
        return self.xp.where(reach > 0, reach * INFLATION + 2 * REFERENCE.unit * abs(value), reach)

    def _widest(self, r: Array | float) -> float:
        return r if isinstance(r, float) else float(self.xp.max(r)) if r.size else 0.0

    def _larger(self, x: Array, y: Array) -> Array:
        return self.xp.where(x > y, x, y)

    def _lift(self, x: Array | float) -> Array:
        return self.library.asarray(x, "F64") if isinstance(x, int | float) else x

    def _lift_bool(self, x: Array | bool) -> Array:
        return self.library.asarray(x, "BOOL") if isinstance(x, bool) else x

    def _some(self, r: Array | float) -> Array:
        return self._lift(r) > 0

    def _lifted(self, numbers: Any) -> Any:
        return float(numbers) if np.ndim(numbers) == 0 else self.library.asarray(numbers, "F64")

    def _full(self, r: Array | float, x: Ball) -> Array:
        return self._spread_over(r, x.centre)

    def _spread_over(self, r: Array | float, centre: Value) -> Array:
        return self.xp.broadcast_to(self._lift(r), centre.shape)

    def _finite(self, x: Array) -> Array:
        return self.xp.isfinite(self._lift(x))

    def _is_exact(self, r: Array | float) -> bool:
        return isinstance(r, float) and r == 0.0


def _loss(number: float, form: Format) -> float:
    """The most that rounding a constant to a format changes it; 0 for one that the format has."""
    mantissa, _ = math.frexp(number)
    has_digits = math.ldexp(mantissa, form.bits).is_integer() if math.isfinite(number) else True
    relative = 0.0 if has_digits else form.unit * abs(number)
    return relative if not abs(number) < form.smallest_normal else max(relative, min(abs(number), form.half_step))


def _span(shape: tuple[int, ...], axis: int, start: int, stop: int) -> tuple[list[int], list[int], list[int]]:
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    return starts, stops, [1] * len(shape)


def _at(shape: tuple[int, ...], axis: int, count: int) -> list[int]:
    return [count if i == axis else 0 for i in range(len(shape))]

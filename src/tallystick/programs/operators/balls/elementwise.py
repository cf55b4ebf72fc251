"""One element at a time: arithmetic, library functions, conversions, and choices over balls that overlap."""
# ruff: noqa: D102  (`Algebra` says what each primitive means)

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod

import numpy as np

from tallystick.core.tensors import numpy_dtype
from tallystick.programs.operators.algebra import Axes, Comparison, Number
from tallystick.programs.operators.arrays import Array
from tallystick.programs.operators.balls import ball
from tallystick.programs.operators.balls.accumulation import Rounding
from tallystick.programs.operators.balls.ball import Ball, Operand
from tallystick.programs.operators.precision import FORMATS
from tallystick.programs.operators.values import Value


class Choices(Rounding):
    """See `Algebra`; a choice between balls that overlap is unknown."""

    def _step(self, name: str, x: Ball, centre: Value | None = None) -> Ball:
        """A monotone step function: the ball covers the steps at both ends of the operand's ball."""
        if centre is None:
            centre = getattr(self.values, name)(x.centre)
        r = self._read(x) if x.dtype in FORMATS else x.width
        if self._is_exact(r):
            return Ball(centre, least=x.least if name == "trunc" and x.least >= 0 else -math.inf)
        ends = self._wide(x.array)
        low, high = (getattr(self.xp, name)(ends + side * r) for side in (-1.0, 1.0))
        wide = self.library.convert(centre.array, self.reference)
        radius = self._hull(getattr(self.xp, name)(x.array), low, high) + 0 * wide
        if centre.dtype in FORMATS:
            return Ball(centre, self._settled(centre, radius, x))
        return Ball(centre, self._unless(radius == 0, centre))

    sign = partialmethod(_step, "sign")
    floor = partialmethod(_step, "floor")
    ceil = partialmethod(_step, "ceil")
    trunc = partialmethod(_step, "trunc")
    round = partialmethod(_step, "round")

    def _of_integers(self, name: str, x: Ball, *other: Operand) -> Ball:
        """A primitive of integers and BOOL, or one that gives these: unknown if an operand is."""
        balls = self._pair(x, *other) if other else (x,)
        return self._discrete(getattr(self.values, name)(*(each.centre for each in balls)), *balls)

    is_finite = partialmethod(_of_integers, "is_finite")
    logical_not = partialmethod(_of_integers, "logical_not")
    logical_xor = partialmethod(_of_integers, "logical_xor")
    floor_divide = partialmethod(_of_integers, "floor_divide")
    remainder = partialmethod(_of_integers, "remainder")
    shift_left = partialmethod(_of_integers, "shift_left")
    shift_right = partialmethod(_of_integers, "shift_right")

    def _logical(self, name: str, x: Ball, y: Ball, decides: bool) -> Ball:
        """A logical operation; a certain operand that equals `decides` fixes the result, whatever the other is."""
        centre = getattr(self.values, name)(x.centre, y.centre)
        if x.radius is None and y.radius is None:
            return Ball(centre)
        if x.dtype != "BOOL":
            return self._discrete(centre, x, y)
        r, s = self._lift(x.width) > 0, self._lift(y.width) > 0
        decided = ((x.array == decides) & ~r) | ((y.array == decides) & ~s)
        return Ball(centre, self._unless(decided | (~r & ~s), centre))

    logical_and = partialmethod(_logical, "logical_and", decides=False)
    logical_or = partialmethod(_logical, "logical_or", decides=True)

    def maximum(self, x: Ball, y: Operand) -> Ball:
        x, y = self._pair(x, y)
        return replace(self._extreme(x, y, "maximum"), least=max(x.least, y.least))

    def minimum(self, x: Ball, y: Operand) -> Ball:
        x, y = self._pair(x, y)
        return replace(self._extreme(x, y, "minimum"), least=min(x.least, y.least))

    def compare(self, x: Ball, y: Operand, how: Comparison) -> Ball:
        """Unknown if the balls overlap, unless both are one operand."""
        is_one = x is y
        x, y = self._pair(x, y)
        centre = self.values.compare(x.centre, y.centre, how)
        if x.dtype not in FORMATS or is_one:
            return self._discrete(centre, x, y)
        r, s = self._read(x), self._read(y)
        if self._is_exact(r) and self._is_exact(s):
            return Ball(centre)
        apart = (abs(x.array - y.array) > r + s) | ((r == 0) & (s == 0))
        known = apart | ((x.array != x.array) | (y.array != y.array)) & self._finite(r + s)
        return Ball(centre, self._unless(known, centre))

    def where(self, condition: Ball, x: Operand, y: Operand) -> Ball:
        """If the condition is unknown, the ball covers both branches."""
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
            either = self.xp.where(either < math.inf, either, math.inf)
            radius = self.xp.where(condition.radius > 0, either, radius)
        return Ball(centre, self._spread_over(radius, centre), least)

    def max(self, x: Ball, axes: Axes, keep: bool = False) -> Ball:
        return self._extreme_of(self.values.max, x, axes, keep)

    def min(self, x: Ball, axes: Axes, keep: bool = False) -> Ball:
        return self._extreme_of(self.values.min, x, axes, keep)

    def argmax(self, x: Ball, axis: int, keep: bool = False) -> Ball:
        """Unknown if several inexact balls reach the maximum, or if there is a NaN."""
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

    def mersenne(self, state: Ball, move: Ball, count: int) -> tuple[Ball, Ball]:
        words, after = self.values.mersenne(state.centre, move.centre, count)
        return Ball(words), Ball(after)

    def sort(self, x: Ball, axis: int, descending: bool) -> tuple[Ball, Ball]:
        """An index is unknown if its neighbours in the order overlap or are equal."""
        centre, order = self.values.sort(x.centre, axis, descending)
        if x.dtype not in FORMATS:
            return Ball(centre, x.radius), Ball(order, self._ties(centre, 0.0, axis))
        if x.radius is None:
            r = self._read(x)
            unordered = None if self._is_exact(r) else self._among_zeros(centre, r, 0.0)
            return Ball(centre, unordered, x.least), Ball(order, self._ties(centre, self._widest(r), axis))
        wide = self._wide(x.array)
        ends = (Value(wide + side * x.radius, "F64") for side in (-1.0, 1.0))
        low, high = (self.values.sort(end, axis, descending)[0].array for end in ends)
        radius = self._among_zeros(centre, self._read(x), self._hull(centre.array, low, high))
        return Ball(centre, radius, x.least), Ball(order, self._ties(centre, self._widest(self._read(x)), axis))

    def _settled(self, centre: Value, radius: Array, *sources: Ball) -> Array:
        """The radius: 0 for certain infinities and NaN, infinite if the computed radius is NaN."""
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
        v, w = self._wide(x.array), self._wide(y.array)
        low, high = choose(v - r, w - s), choose(v + r, w + s)
        radius = self._among_zeros(centre, r + s, self._hull(centre.array, low, high))
        return Ball(centre, self._settled(centre, radius, x, y))

    def _extreme_of(self, reduce: Callable[[Value, Axes, bool], Value], x: Ball, axes: Axes, keep: bool) -> Ball:
        centre = reduce(x.centre, axes, keep)
        if x.dtype not in FORMATS:
            return self._reduced_discrete(centre, x, axes, keep)
        r = self._read(x)
        if self._is_exact(r):
            return Ball(centre, least=x.least)
        wide = self._wide(x.array)
        low, high = (reduce(Value(wide + side * r, "F64"), axes, keep).array for side in (-1.0, 1.0))
        radius = self._among_zeros(centre, r, self._hull(centre.array, low, high))
        unknown = self._total(self.library.convert(~(self._full(r, x) < math.inf), "F64"), axes, keep)
        sure = ~self.xp.isfinite(centre.array) & (unknown == 0)
        radius = self.xp.where(sure, 0.0, self.xp.where(radius < math.inf, radius, math.inf))
        return Ball(centre, self._spread_over(radius, centre), x.least)

    def _among_zeros(self, centre: Value, r: Array | float, radius: Array | float) -> Array:
        """The radius, grown to cover any order of numbers that a device may all read as 0."""
        if self._is_exact(r):
            return radius
        tiny = self.precision.read_as_zero(centre.dtype)
        reach = self.xp.where(abs(centre.array) < tiny, tiny + abs(centre.array), 0.0)
        radius = self._spread_over(radius, centre)
        return self.xp.where(reach > radius, reach, radius)

    def _ties(self, ordered: Value, width: float, axis: int) -> Array | None:
        """Infinite for elements with a neighbour in the order at most two radii away."""
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


def _span(shape: tuple[int, ...], axis: int, start: int, stop: int) -> tuple[list[int], list[int], list[int]]:
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    return starts, stops, [1] * len(shape)


def _at(shape: tuple[int, ...], axis: int, count: int) -> list[int]:
    return [count if i == axis else 0 for i in range(len(shape))]


class Elementwise(Choices):
    """See `Algebra`; one function or operation per element."""

    def cast(self, x: Ball, dtype: str) -> Ball:
        """A float cut to an integer is unknown if several integers are possible or none fits."""
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
        return Ball(self.values.neg(x.centre), x.radius)

    def abs(self, x: Ball) -> Ball:
        return Ball(self.values.abs(x.centre), x.radius, 0.0)

    def _function(self, name: str, x: Ball, least: float = -math.inf) -> Ball:
        centre = getattr(self.values, name)(x.centre)
        r = self._read(x)
        spread = 0.0 if self._is_exact(r) else self._propagated(name, x, r)
        if name in self.figures.absolute:
            spread = spread + self.figures.absolute[name]

        def doubt() -> Array:
            return self.xp.isinf(centre.array) & (x.array == 0)

        def pole() -> Array | bool:
            return (x.array == 0) & (self._lift(x.width) == 0) if name == "log" else False

        return self._rounded(centre, spread, (x,), 2 * self.figures.ulps[name], least, doubt, pole)

    sqrt = partialmethod(_function, "sqrt", least=0.0)
    rsqrt = partialmethod(_function, "rsqrt", least=0.0)
    exp = partialmethod(_function, "exp", least=0.0)
    expm1 = partialmethod(_function, "expm1")
    log = partialmethod(_function, "log")
    log1p = partialmethod(_function, "log1p")
    sin = partialmethod(_function, "sin")
    cos = partialmethod(_function, "cos")
    tanh = partialmethod(_function, "tanh")
    erf = partialmethod(_function, "erf")
    sigmoid = partialmethod(_function, "sigmoid", least=0.0)

    def add(self, x: Ball, y: Operand) -> Ball:
        x, y = self._pair(x, y)
        centre = self.values.add(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        low = (x.least + y.least) * (1 - 2 * FORMATS[x.dtype].unit) if min(x.least, y.least) >= 0 else -math.inf
        return self._rounded(centre, self._joined(self._read(x), self._read(y)), (x, y), least=low)

    def sub(self, x: Operand, y: Operand) -> Ball:
        x, y = self._pair(x, y)
        centre = self.values.sub(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        return self._rounded(centre, self._joined(self._read(x), self._read(y)), (x, y))

    def mul(self, x: Ball, y: Operand) -> Ball:
        """A square is never negative."""
        square = x is y
        x, y = self._pair(x, y)
        centre = self.values.mul(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        r, s = self._factor(x), self._factor(y)
        spread = self._product_moved(x, r, y, s)
        low = 0.0 if square or min(x.least, y.least) >= 0 else -math.inf
        return self._rounded(centre, spread, (x, y), least=low, doubt=lambda: self._vanishing(x, r, y, s))

    def div(self, x: Operand, y: Operand) -> Ball:
        """Two roundings if one divisor serves many elements, because kernels multiply by 1 / y."""
        x, y = self._pair(x, y)
        centre = self.values.div(x.centre, y.centre)
        r, s = self._factor(x), self._factor(y)
        spread = self._quotient_moved(x, r, y, s)
        units = 1.0 if y.shape == centre.shape and y.shape else 2.0
        low = 0.0 if min(x.least, y.least) >= 0 else -math.inf
        return self._rounded(centre, spread, (x, y), units, low, lambda: self._by_zero(centre, y, s))

    def _by_zero(self, quotient: Value, y: Ball, s: Array | float) -> Array:
        return ((y.size <= s) & self._some(s)) | (self.xp.isinf(quotient.array) & (y.array == 0))

    def pow(self, x: Operand, y: Operand) -> Ball:
        number = y if isinstance(y, int | float) else None
        x, y = self._pair(x, y)
        centre = self.values.pow(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        r, s = self._read(x), self._read(y)
        if number is not None and number >= 1:
            spread = ball.whole_power(self.xp, x.array, r, float(number))
            spread = spread + ball.exponent_moved(self.xp, centre.array, x.array, r, s)
        else:
            spread = ball.power(self.xp, x.array, self._lift(r), y.array, s, x.least)
        is_even = number is not None and number % 2 == 0
        low = 0.0 if is_even or x.least >= 0 else -math.inf
        units = self._power_units(number)
        result = self._rounded(centre, spread, (x, y), units, low, lambda: self._some(s) | self._some(r))
        return self._open(result, self._is_one_of_any_power(x, r, y, s))

    def _is_one_of_any_power(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array:
        """Where a ball contains base 1 or exponent 0 without being exactly that; 1^NaN and NaN^0 are 1."""
        base = (y.array != y.array) & (abs(x.array - 1) <= r) & self._some(r)
        return base | ((x.array != x.array) & (y.size <= s) & self._some(s))

    def wide(self, x: Ball) -> Ball:
        return Ball(self.values.wide(x.centre), x.radius, x.least)

    def _product_moved(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array | float:
        return ball.product(self.xp, x.array, r, y.array, s) + self._regrouping(x.dtype)

    def _quotient_moved(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array | float:
        return ball.quotient(self.xp, x.array, r, y.array, s, y.least) + self._regrouping(x.dtype)

    def _propagated(self, name: str, x: Ball, r: Array) -> Array:
        """The effect of a radius; the one of 1 / √x has x^1.5 in a divisor, which underflows in F32."""
        propagate = ball.PROPAGATIONS[name]
        if not self.lost or name != "rsqrt":
            return propagate(self.xp, x.array, r, x.least)
        v, reach = (self.library.convert(self._lift(each), "F64") for each in (x.array, r))
        return self.library.convert(propagate(self.xp, v, reach, x.least), self.reference)

    def _narrowed(self, x: Ball, centre: Value) -> Ball:
        """A cast between float dtypes; exact to a wider dtype, which holds every value of a narrower one."""
        old, new = FORMATS[x.dtype], FORMATS[centre.dtype]
        if new.bits >= old.bits and new.exponent_max >= old.exponent_max:
            r = self._read(x)
            return Ball(centre, None if self._is_exact(r) else r, x.least)
        least = x.least * (1 - 2 * new.unit) if x.least >= 0 else -math.inf
        return self._rounded(centre, x.width, (x,), 1.0, least)

    def _counted(self, x: Ball, centre: Value) -> Ball:
        """A cast from integers and booleans to floats; rounds if they have more digits than the format."""
        if x.dtype == "BOOL":
            return Ball(centre, None if x.radius is None else self.xp.where(x.radius > 0, 1.0, 0.0), 0.0)
        form, held = FORMATS[centre.dtype], FORMATS[self.reference]
        unit = (form.unit + held.unit) * self.inflation if self.lost else form.unit
        rounding = self.xp.where(abs(centre.array) > 2.0 ** min(form.bits, held.bits), unit * abs(centre.array), 0.0)
        radius = rounding + x.width
        return Ball(centre, self.xp.where(abs(centre.array) < form.largest, radius, math.inf), x.least)

    def _power_units(self, number: Number | None) -> float:
        """The units of rounding of a power; at most 4 roundings for small integers and roots."""
        if number is not None and (number in (0.5, -0.5) or (float(number).is_integer() and abs(number) <= 3)):
            return 4.0
        return 2 * self.figures.ulps["pow"]

    def _vanishing(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array | bool:
        """Where a factor may or may not be 0; times an infinity, this decides between NaN and infinity."""
        if self._is_exact(r) and self._is_exact(s):
            return False
        return ((x.size <= r) & self._some(r)) | ((y.size <= s) & self._some(s))

    def _cut(self, x: Ball, centre: Value) -> Ball:
        """A cast from floats to integers; unknown for values out of range, because C does not define them."""
        limits = np.iinfo(numpy_dtype(centre.dtype))
        fits = (x.array > float(limits.min) - 1) & (x.array < float(limits.max))
        cut = self._step("trunc", x, centre)
        if bool(self.xp.all(fits)):
            return cut
        return replace(cut, radius=self.xp.where(fits, self._full(cut.width, cut), math.inf))

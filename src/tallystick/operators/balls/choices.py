"""Primitives that choose: steps, comparisons, extremes and order. If balls overlap, the result covers each outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tallystick.operators.algebra import Axes, Comparison
from tallystick.operators.arrays import Array
from tallystick.operators.balls.ball import Ball, Operand
from tallystick.operators.balls.rounding import Rounding
from tallystick.operators.precision import FORMATS
from tallystick.operators.values import Value


class Choices(Rounding):
    """See `Algebra`; a choice between balls that overlap is unknown."""

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

    def is_finite(self, x: Ball) -> Ball:
        """See `Algebra.is_finite`; unknown if the radius is infinite."""
        return self._discrete(self.values.is_finite(x.centre), x)

    def maximum(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.maximum`."""
        x, y = self._pair(x, y)
        return replace(self._extreme(x, y, "maximum"), least=max(x.least, y.least))

    def minimum(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.minimum`."""
        x, y = self._pair(x, y)
        return replace(self._extreme(x, y, "minimum"), least=min(x.least, y.least))

    def compare(self, x: Ball, y: Operand, how: Comparison) -> Ball:
        """See `Algebra.compare`; unknown if the balls overlap, unless both are one operand."""
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

    def where(self, condition: Ball, x: Operand, y: Operand) -> Ball:
        """See `Algebra.where`; if the condition is unknown, the ball covers both branches."""
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
        """See `Algebra.max`."""
        return self._extreme_of(self.values.max, x, axes, keep)

    def min(self, x: Ball, axes: Axes, keep: bool = False) -> Ball:
        """See `Algebra.min`."""
        return self._extreme_of(self.values.min, x, axes, keep)

    def argmax(self, x: Ball, axis: int, keep: bool = False) -> Ball:
        """See `Algebra.argmax`; unknown if several inexact balls reach the maximum, or if there is a NaN."""
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
        """Exact."""
        words, after = self.values.mersenne(state.centre, move.centre, count)
        return Ball(words), Ball(after)

    def sort(self, x: Ball, axis: int, descending: bool) -> tuple[Ball, Ball]:
        """See `Algebra.sort`; an index is unknown if its neighbours in the order overlap or are equal."""
        centre, order = self.values.sort(x.centre, axis, descending)
        if x.dtype not in FORMATS:
            return Ball(centre, x.radius), Ball(order, self._ties(centre, 0.0, axis))
        if x.radius is None:
            r = self._read(x)
            unordered = None if self._is_exact(r) else self._among_zeros(centre, r, 0.0)
            return Ball(centre, unordered, x.least), Ball(order, self._ties(centre, self._widest(r), axis))
        wide = self._wide(x.array)
        low, high = (self._sorted(wide + side * x.radius, axis, descending) for side in (-1.0, 1.0))
        radius = self._among_zeros(centre, self._read(x), self._hull(centre.array, low, high))
        return Ball(centre, radius, x.least), Ball(order, self._ties(centre, self._widest(self._read(x)), axis))

    def _step(self, x: Ball, centre: Value, name: str) -> Ball:
        """A monotone step function: the ball covers the steps at both ends of the operand's ball."""
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

    def _logical(self, centre: Value, x: Ball, y: Ball, decides: bool) -> Ball:
        """A logical operation; a certain operand that equals `decides` fixes the result, whatever the other is."""
        if x.radius is None and y.radius is None:
            return Ball(centre)
        if x.dtype != "BOOL":
            return self._discrete(centre, x, y)
        r, s = self._lift(x.width) > 0, self._lift(y.width) > 0
        decided = ((x.array == decides) & ~r) | ((y.array == decides) & ~s)
        return Ball(centre, self._unless(decided | (~r & ~s), centre))


def _span(shape: tuple[int, ...], axis: int, start: int, stop: int) -> tuple[list[int], list[int], list[int]]:
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    return starts, stops, [1] * len(shape)


def _at(shape: tuple[int, ...], axis: int, count: int) -> list[int]:
    return [count if i == axis else 0 for i in range(len(shape))]

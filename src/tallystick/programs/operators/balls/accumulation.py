"""Rounding of results, and the sums and products that accumulate it."""
# ruff: noqa: D102  (`Algebra` says what each primitive means)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from tallystick.programs.operators.algebra import Axes
from tallystick.programs.operators.arrays import Array
from tallystick.programs.operators.balls.ball import Ball, Frame
from tallystick.programs.operators.precision import FORMATS, Format
from tallystick.programs.operators.rounding import Deterministic, RoundedSums, worst_factor
from tallystick.programs.operators.values import Value

_WIDE_RANGE: Final = 64
Doubt: TypeAlias = Callable[[], Array | bool]


def _never() -> bool:
    return False


class Rounding(Frame):
    """Computes radii from roundings."""

    def _rounded(
        self,
        centre: Value,
        spread: Array | float,
        sources: Sequence[Ball],
        units: float = 1.0,
        least: float = -math.inf,
        doubt: Doubt = _never,
        pole: Doubt = _never,
    ) -> Ball:
        """The ball of a result after `units` roundings, if it was within `spread` of its centre before them.

        `doubt` and `pole` are asked where a centre is infinite or NaN.
        """
        form, v = self._form(centre.dtype), centre.array
        relative = units * (form.unit + self.reference_unit)
        underflow = units * max(self.precision.underflow(centre.dtype), form.half_step)
        radius = (spread + relative * (1 + relative) * (abs(v) + spread)) * self.inflation
        if self.lost or centre.dtype == "F64":  # the reference underflows too, so that a centre of 0 says nothing
            radius = (radius + (underflow + 2 * units * self.lost)) * (self.inflation if self.lost else 1.0)
        else:
            radius = radius + self.xp.where((radius > 0) | (v != 0), underflow, 0.0)
        for source in sources:
            if source.radius is not None:
                radius = radius + 0.0 * source.radius
        radius = self.xp.where(self._fits(form, v, radius, spread, units), radius, math.inf)
        if bool(self.xp.any(~self.xp.isfinite(v))):
            radius = self.xp.where(self._certain(v, sources, doubt()) | pole(), 0.0, radius)
        return Ball(centre, radius, least)

    def _fits(self, form: Format, v: Array, radius: Array, spread: Array | float, units: float) -> Array:
        """Where no honest result overflows.

        Rounding to nearest gives an infinity only from half a step beyond the largest number (IEEE 754-2019 §4.3.1). So
        a mask of the smallest number plus a score stays finite. Fused kernels scale their scores and masks first.
        """
        if units > 1 or self.rescaling:
            return abs(v) + radius < form.largest * self.within
        if self.lost and form.largest == FORMATS[self.reference].largest and self._is_exact(spread):
            return self.xp.isfinite(v)  # the reference rounds as every honest device does
        reached = abs(v) * (1 + 2 * self.reference_unit) + spread * self.inflation
        return reached < form.largest * (1 + form.unit / 4) * self.within

    def _certain(self, v: Array, sources: Sequence[Ball], doubt: Array | bool) -> Array:
        """Where an infinity or NaN is certain: it follows from an infinite operand or an invalid operation."""
        wild: Array | bool = False
        nan: Array | bool = False
        finite: Array | bool = True
        exact: Array | bool = True
        for source in sources:
            wild = wild | ~self.xp.isfinite(source.array)
            nan = nan | (source.array != source.array)
            finite = finite & (self._lift(source.width) < math.inf)
            exact = exact & (self._lift(self._read(source)) == 0)
        inherited = wild & finite & ~self._lift_bool(doubt)
        return ~self.xp.isfinite(v) & (inherited | ((v != v) & (exact | (finite & nan))))

    def _read(self, x: Ball) -> Array | float:
        """The radius, grown to include 0 where the device may read a subnormal operand as 0."""
        return self._lost_below(x, self.precision.read_as_zero(x.dtype))

    def _factor(self, x: Ball) -> Array | float:
        """As `_read`, for a factor: regrouped products may underflow or overflow earlier."""
        if not self.regrouped:
            return self._read(x)
        form = self._form(x.dtype)
        edge = 2.0 ** ((form.exponent_max - 1) // 2)
        r = self._read(x) if form.exponent_max < _WIDE_RANGE else self._lost_below(x, 1 / edge)
        far = x.size >= edge
        if not bool(self.xp.any(far)):
            return r
        return self.xp.where(far & self.xp.isfinite(x.array), math.inf, r)

    def _regrouping(self, dtype: str) -> float:
        """The largest loss when a product underflows and is then multiplied by another factor, in a narrow format."""
        form = self._form(dtype)
        is_lost = self.regrouped and form.exponent_max < _WIDE_RANGE
        return form.half_step * 2.0 ** ((form.exponent_max - 1) // 2) if is_lost else 0.0

    def _lost_below(self, x: Ball, tiny: float) -> Array | float:
        size, near = x.size, x.size - x.width < tiny if x.radius is not None else x.size < tiny
        if not bool(self.xp.any(near)):
            return x.width
        near = near & ((size > 0) | self._some(x.width))
        if not bool(self.xp.any(near)):
            return x.width
        return self.xp.where(near, x.width + self.xp.where(size + x.width < tiny, size + x.width, tiny), x.width)

    def _finite_size(self, x: Ball) -> Array:
        """|x|, with 0 for infinities and NaN."""
        return self._of_finite(x.size)

    def _size(self, centre: Value) -> Array:
        return self._of_finite(abs(centre.array))

    def _of_finite(self, size: Array) -> Array:
        """The magnitudes, with 0 for infinities and NaN; without a copy where all are finite."""
        finite = size < math.inf
        return size if bool(self.xp.all(finite)) else self.xp.where(finite, size, 0.0)


class Accumulation(Rounding):
    """See `Algebra`; the radii of sums come from the model of rounding."""

    def sum(self, x: Ball, axes: Axes, keep: bool = False, short: int = 0) -> Ball:
        centre = self.values.sum(x.centre, axes, keep)
        if x.dtype not in FORMATS:
            return self._reduced_discrete(centre, x, axes, keep)
        terms = math.prod(x.shape[axis] for axis in axes)
        return self._accumulated(centre, x, terms, lambda array: self._total(array, axes, keep), self.plain, short)

    def prod(self, x: Ball, axes: Axes, keep: bool = False) -> Ball:
        """The radius is infinite if some order of multiplication overflows or underflows."""
        centre = self.values.prod(x.centre, axes, keep)
        if x.dtype not in FORMATS:
            return self._reduced_discrete(centre, x, axes, keep)
        form, size = self._form(x.dtype), x.size + self._read(x)
        terms = math.prod(x.shape[axis] for axis in axes)
        factor = RoundedSums(
            terms, form.unit, lambda: 0.0, 1.0, lambda: 0.0, products=True, reference=self.reference_unit
        )
        largest = self._over(self.xp.where(size > 1, size, 1.0), self.values.prod, axes, keep)
        smallest = self._over(self.xp.where((size < 1) & (size > 0), size, 1.0), self.values.prod, axes, keep)
        high = self._grown(self._over(size, self.values.prod, axes, keep), terms)
        apart = high - abs(centre.array)
        if self.lost:  # both are rounded
            apart = (
                0.0
                if self._is_exact(self._read(x))
                else apart + float(worst_factor(terms, 0.0, factor.reference)) * high
            )
        radius = apart + (Deterministic().spread(factor, self.library) + 2.0**-50) * high
        within = (largest < form.largest * self.within**2) & (smallest * self.within**2 > form.smallest_normal)
        return Ball(centre, self.xp.where(within & self._finite(centre.array), radius * self.inflation, math.inf))

    def cumsum(self, x: Ball, axis: int) -> Ball:
        centre = self.values.cumsum(x.centre, axis)
        if x.dtype not in FORMATS:
            return self._if_exact(centre, x) or self._unknown(centre)
        terms = np.arange(1, x.shape[axis] + 1).reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
        return self._accumulated(centre, x, terms, lambda array: self._over(array, self.values.cumsum, axis))

    def dot(
        self, x: Ball, y: Ball, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ()), short: int = 0
    ) -> Ball:
        centre = self.values.dot(x.centre, y.centre, contract, batch)
        if x.dtype not in FORMATS:
            return self._if_exact(centre, x, y) or self._unknown(centre)

        terms = math.prod(x.shape[axis] for axis in contract[0])

        def product(a: Array, b: Array) -> Array:
            return self._grown(self.values.dot(Value(a, "F64"), Value(b, "F64"), contract, batch).array, terms)

        r, s = self._multiplied(x), self._multiplied(y)
        exact, a, b = self._is_exact(r) and self._is_exact(s), self._finite_size(x), self._finite_size(y)
        spread: Array | float = 0.0
        if not self._is_exact(s):
            s = self._full(s, y)
            spread = product(a, s)
        if not self._is_exact(r):
            r = self._full(r, x)
            spread = self._joined(spread, product(r, b if self._is_exact(s) else b + s))
        low = 0.0 if min(x.least, y.least) >= 0 else -math.inf
        magnitude = (
            self._of_finite(centre.array)
            if exact and low == 0
            else product(a if self._is_exact(r) else a + r, b if self._is_exact(s) else b + s)
        )
        sums = RoundedSums(
            terms=terms,
            unit=self.precision.accumulator(x.dtype).unit,
            value=lambda: self._size(centre) + spread,
            magnitude=magnitude,
            norm=lambda: self.xp.sqrt(product(a * a, b * b)) + spread,
            products=True,
            rescaling=self.rescaling,
            short=short,
            reference=self.reference_unit,
        )
        return self._summed(centre, sums, spread, low)

    def scatter(self, x: Ball, indices: Sequence[Ball], axis: int, updates: Ball, add: bool) -> Ball:
        """An element is unknown if two updates are written to it."""
        places = [index.centre for index in indices]
        centre = self.values.scatter(x.centre, places, axis, updates.centre, add)
        if any(index.radius is not None for index in indices):
            return self._unknown(centre)

        def put(base: Array, array: Array, add: bool = add) -> Array:
            array = self._spread_over(array, updates.centre)
            return self.values.scatter(Value(base, "F64"), places, axis, Value(array, "F64"), add).array

        counts = put(self._full(0.0, x), self._full(1.0, updates), add=True)
        terms = self.library.storage(counts) + 1
        if not add or x.dtype not in FORMATS:
            radius = put(self._full(x.width, x), self._full(updates.width, updates))
            return self._collided(centre, x, updates, radius, counts, add)
        r, s = self._full(self._read(x), x), self._full(self._read(updates), updates)
        a, b = self._finite_size(x), self._finite_size(updates)
        spread = self._grown(put(r, s), terms)
        sums = RoundedSums(
            terms=terms,
            unit=self.precision.accumulator(x.dtype).unit,
            value=lambda: self._size(centre) + spread,
            magnitude=self._grown(put(a + r, b + s), terms),
            norm=lambda: self.xp.sqrt(self._grown(put(a * a, b * b), terms)) + spread,
            reference=self.reference_unit,
        )
        result = self._summed(centre, sums, spread, 0.0 if min(x.least, updates.least) >= 0 else -math.inf)
        radius = self.xp.where(counts > 0, result.width, self._full(x.width, x))
        return replace(result, radius=radius)

    def _accumulated(
        self, centre: Value, x: Ball, terms: Any, total: Callable[[Array], Array], plain: bool = False, short: int = 0
    ) -> Ball:
        """The ball of sums over a tensor's elements; `total` sums an array over the same elements."""
        r = self._read(x)
        size = self._finite_size(x)
        spread = 0.0 if self._is_exact(r) else self._grown(total(self._full(r, x)), terms)
        magnitude = self._grown(total(size), terms)
        sums = RoundedSums(
            terms=terms,
            unit=self.precision.accumulator(x.dtype).unit,
            value=lambda: self._size(centre) + spread,
            magnitude=magnitude if self._is_exact(spread) else magnitude + spread,
            norm=lambda: self.xp.sqrt(self._grown(total(size * size), terms)) + spread,
            plain=plain,
            rescaling=self.rescaling,
            short=short,
            reference=self.reference_unit,
        )
        return self._summed(centre, sums, spread, 0.0 if x.least >= 0 else -math.inf)

    def _grown(self, sums: Array, terms: Any) -> Array:
        """Computed sums of numbers ≥ 0, grown to reach the exact ones: they have γ_k of their own in F32."""
        if not self.lost:  # `INFLATION` covers sums in F64
            return sums
        return sums * self._lifted(1 + 1.01 * worst_factor(np.asarray(terms) + 2, self.reference_unit, 0.0))

    def _summed(self, centre: Value, sums: RoundedSums, spread: Array | float, least: float) -> Ball:
        """The ball of sums: its radius is infinite where partial sums may overflow, and 0 where a term is infinite.

        A sum of products with an infinite term is unknown instead: kernels pad with zeros, and 0 · ∞ is NaN.
        """
        form = self._form(centre.dtype)
        limit = min(form.largest, self.precision.accumulator(centre.dtype).largest)
        radius = (self.model.spread(sums, self.library) + spread * (1 + form.unit)) * self.inflation
        terms = max(float(sums.terms), 0.0) if isinstance(sums.terms, int) else np.maximum(sums.terms, 0.0)
        lost = max(self.precision.underflow(centre.dtype), form.half_step) * 2.0 * terms
        if self.lost:
            radius = radius + self._lifted(lost + 2.0 * self.lost * terms)
        else:
            radius = radius + self._lifted(lost) * self.library.convert(sums.magnitude > 0, "F64")
        if self.step is not None:
            radius = radius + 2 * form.unit * (self._size(centre) + radius) + self._kept_short(sums, form, radius)
        radius = radius * self.inflation if self.lost else radius
        radius = self.xp.where(self.xp.isfinite(centre.array), radius, math.inf if sums.products else 0.0)
        radius = self.xp.where((sums.magnitude * 1.01 < limit) & (radius < math.inf), radius, math.inf)
        return Ball(centre, self._spread_over(radius, centre), least)

    def _kept_short(self, sums: RoundedSums, form: Format, radius: Array) -> Array | float:
        """The error of partial sums in a 16-bit format: γ (Σ|t| + radius), plus half a subnormal step per rounding."""
        if not sums.short:
            return 0.0
        return (
            float(worst_factor(sums.short, form.unit, sums.reference)) * (sums.magnitude + radius)
            + sums.short * form.half_step
        )

    def _collided(self, centre: Value, x: Ball, updates: Ball, radius: Array, counts: Array, add: bool) -> Ball:
        if not add:
            radius = self.xp.where(counts > 1, math.inf, radius)
        elif x.dtype not in FORMATS:
            radius = self.xp.where(radius > 0, math.inf, 0.0)
        return Ball(centre, radius, min(x.least, updates.least))

    def _multiplied(self, x: Ball) -> Array | float:
        """As `_read`, plus the rounding to the format of products; elements that this format holds stay exact."""
        r, form = self._factor(x), self.precision.multiplier(x.dtype)
        if form is None:
            return r
        split = x.array * (2.0 ** (FORMATS[self.reference].bits - form.bits) + 1)
        coarse = split - (split - x.array)
        changed = (coarse != x.array) | (self._lift(r) > 0)
        return r + self.xp.where(changed, 2 * form.unit * (x.size + r), 0.0)

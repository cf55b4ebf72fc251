"""The rounding of a result, and the values as which an honest device may read an operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tallystick.operators.arrays import Array
from tallystick.operators.balls.ball import Ball
from tallystick.operators.balls.frame import Frame
from tallystick.operators.precision import FORMATS, Format
from tallystick.operators.values import Value

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

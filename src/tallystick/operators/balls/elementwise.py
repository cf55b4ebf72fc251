"""One element at a time: arithmetic, library functions and conversions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tallystick.operators.algebra import Number
from tallystick.operators.arrays import Array
from tallystick.operators.balls import propagation
from tallystick.operators.balls.ball import Ball, Operand
from tallystick.operators.balls.choices import Choices
from tallystick.operators.precision import FORMATS
from tallystick.operators.values import Value
from tallystick.tensors.dtypes import numpy_dtype


class Elementwise(Choices):
    """See `Algebra`; one function or operation per element."""

    def cast(self, x: Ball, dtype: str) -> Ball:
        """See `Algebra.cast`; a float cut to an integer is unknown if several integers are possible or none fits."""
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

    def add(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.add`."""
        x, y = self._pair(x, y)
        centre = self.values.add(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        low = (x.least + y.least) * (1 - 2 * FORMATS[x.dtype].unit) if min(x.least, y.least) >= 0 else -math.inf
        return self._rounded(centre, self._joined(self._read(x), self._read(y)), (x, y), least=low)

    def sub(self, x: Operand, y: Operand) -> Ball:
        """See `Algebra.sub`."""
        x, y = self._pair(x, y)
        centre = self.values.sub(x.centre, y.centre)
        if x.dtype not in FORMATS:
            return self._discrete(centre, x, y)
        return self._rounded(centre, self._joined(self._read(x), self._read(y)), (x, y))

    def mul(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.mul`; a square is never negative."""
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
        """See `Algebra.div`; two roundings if one divisor serves many elements, because kernels multiply by 1 / y."""
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
            spread = propagation.power(self.xp, x.array, self._lift(r), y.array, s, x.least)
        is_even = number is not None and number % 2 == 0
        low = 0.0 if is_even or x.least >= 0 else -math.inf
        units = self._power_units(number)
        result = self._rounded(centre, spread, (x, y), units, low, lambda: self._some(s) | self._some(r))
        return self._open(result, self._is_one_of_any_power(x, r, y, s))

    def _is_one_of_any_power(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array:
        """Where a ball contains base 1 or exponent 0 without being exactly that; 1^NaN and NaN^0 are 1."""
        base = (y.array != y.array) & (abs(x.array - 1) <= r) & self._some(r)
        return base | ((x.array != x.array) & (y.size <= s) & self._some(s))

    def floor_divide(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.floor_divide`."""
        x, y = self._pair(x, y)
        return self._discrete(self.values.floor_divide(x.centre, y.centre), x, y)

    def remainder(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.remainder`."""
        x, y = self._pair(x, y)
        return self._discrete(self.values.remainder(x.centre, y.centre), x, y)

    def shift_left(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.shift_left`."""
        x, y = self._pair(x, y)
        return self._discrete(self.values.shift_left(x.centre, y.centre), x, y)

    def shift_right(self, x: Ball, y: Operand) -> Ball:
        """See `Algebra.shift_right`."""
        x, y = self._pair(x, y)
        return self._discrete(self.values.shift_right(x.centre, y.centre), x, y)

    def wide(self, x: Ball) -> Ball:
        """See `Algebra.wide`."""
        return Ball(self.values.wide(x.centre), x.radius, x.least)

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

    def _product_moved(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array | float:
        return propagation.product(self.xp, x.array, r, y.array, s) + self._regrouping(x.dtype)

    def _quotient_moved(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array | float:
        return propagation.quotient(self.xp, x.array, r, y.array, s, y.least) + self._regrouping(x.dtype)

    def _propagated(self, name: str, x: Ball, r: Array) -> Array:
        """The effect of a radius; the one of 1 / √x has x^1.5 in a divisor, which underflows in F32."""
        propagate = propagation.PROPAGATIONS[name]
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
        found = self._step(x, centre, "trunc")
        if bool(self.xp.all(fits)):
            return found
        return replace(found, radius=self.xp.where(fits, self._full(found.width, found), math.inf))

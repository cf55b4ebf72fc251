"""Balls of ordinary numbers, without a check of single elements; products of matrices are bounded by norms."""
# ruff: noqa: D102  (`Algebra` says what each primitive means)

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from tallystick.programs.operators.algebra import Axes, Number
from tallystick.programs.operators.arrays import Array
from tallystick.programs.operators.balls import ball
from tallystick.programs.operators.balls.accumulation import Doubt
from tallystick.programs.operators.balls.ball import Ball, Operand
from tallystick.programs.operators.balls.bound import Balls
from tallystick.programs.operators.precision import FORMATS
from tallystick.programs.operators.rounding import Deterministic, RoundedSums, worst_factor
from tallystick.programs.operators.values import Value, Values

LOST: Final = 2 * FORMATS["F32"].smallest_normal
"""What a square loses by an underflow in F32, and more."""


class _Norms(Values):
    """The algebra of arrays with ‖x‖₂‖y‖₂ in place of Σxy, which is not larger."""

    def dot(
        self, x: Value, y: Value, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ()), short: int = 0
    ) -> Value:
        """Norms are products over one term."""
        left, right = (self._norm(each, axes) for each, axes in zip((x, y), contract, strict=True))
        return super().dot(left, right, contract, batch, short)

    def _norm(self, x: Value, axes: Axes) -> Value:
        terms = math.prod(x.shape[axis] for axis in axes)
        squares = self.sum(Value(x.array * x.array, x.dtype), axes, keep=True)
        return Value(self.library.xp.sqrt(squares.array + terms * LOST), x.dtype)


# Balls of ordinary numbers: no element is checked by itself; one number shows afterwards that none was special.
#
# The rules of `Balls` spend most of their time on elements that are infinite, NaN, subnormal or near an overflow. Here
# they are left out, and every radius includes what a device may lose by reading a subnormal number as 0. `total()`
# tells afterwards whether this was right:
#
# * Operands are finite, below `LARGEST`, and 0 or at least the smallest normal number; 2⁻⁶³ where factors may be
#   regrouped. The balls of smaller ones reach 0 (`operand`).
# * Every rounding adds at least u(|v| + r) to its radius, u ≥ 2⁻²⁴. So where all radii together are finite and below
#   `LIMIT`, each centre with its radius is below `LIMIT` / u = `LARGEST`: it is no NaN, products of two do not overflow
#   in any order, and divisors do not contain 0.
#
# Where it does not hold, the caller reads the definition again in `Balls`. F16 is not read here: its range is too
# narrow.

LIMIT: Final = 2.0**36
LARGEST: Final = 2.0**60
SMALLEST: Final = FORMATS["F32"].smallest_normal
SMALLEST_FACTOR: Final = 2.0**-63
SATURATING: Final = frozenset({"sin", "cos", "tanh", "erf", "sigmoid"})
DTYPES: Final = frozenset({"F32", "BF16"})


@dataclass(frozen=True)
class OrdinaryBalls(Balls):
    """See `Balls`, whose radii these are up to the constants of underflows; `seen` collects radii.

    A radius that enters that of a sum or difference as it is need not be kept: the other is no smaller. With
    `magnitudes`, operands are the sizes of the operator's, and no more than sizes is known of results. With `norms`,
    products of these are bounded by norms.
    """

    magnitudes: bool = False
    norms: bool = False

    seen: dict[int, Array] = field(default_factory=dict)
    constants: dict[Any, Ball] = field(default_factory=dict)
    numbers: dict[float, Array] = field(default_factory=dict)

    @cached_property
    def values(self) -> Values:
        """The algebra of the centres."""
        kind = _Norms if self.norms else Values
        return kind(self.library, self.reference)

    @property
    def least(self) -> float:
        """The smallest magnitude besides 0 that an operand may have."""
        return SMALLEST_FACTOR if self.regrouped else SMALLEST

    def operand(self, x: Ball, tiny: bool) -> Ball:
        """`x`; if some elements are `tiny`, below `least`, balls that reach 0 in their place."""
        if not tiny:
            return x
        return replace(x, radius=self.xp.where(x.size < self.least, x.size, 0.0))

    def total(self) -> Array:
        """The sum of all radii so far, to be compared with `LIMIT`; NaN is not below it."""
        total = self._lift(0.0)
        for radius in self.seen.values():
            total = total + self.xp.sum(radius)
        return total

    def add(self, x: Ball, y: Operand) -> Ball:
        return self._instead_of(super().add(x, y), x, y)

    def sub(self, x: Operand, y: Operand) -> Ball:
        return self._instead_of(super().sub(x, y), x, y)

    def sum(self, x: Ball, axes: Axes, keep: bool = False, short: int = 0) -> Ball:
        return self._instead_of(super().sum(x, axes, keep, short), x)

    def _instead_of(self, result: Ball, *operands: Operand) -> Ball:
        if result.dtype in FORMATS and 0 not in result.shape:
            for each in operands:
                if isinstance(each, Ball):
                    self.seen.pop(id(each.radius), None)
        return result

    def _rounded(
        self,
        centre: Value,
        spread: Array | float,
        sources: Sequence[Ball],
        units: float = 1.0,
        least: float = -math.inf,
        doubt: Doubt | None = None,
        pole: Doubt | None = None,
    ) -> Ball:
        """The same radius, with the loss of a subnormal that is read as 0 later."""
        form = self._form(centre.dtype)
        relative = units * (form.unit + self.reference_unit)
        grown = relative * (1 + relative) * self.inflation
        underflow = units * max(self.precision.underflow(centre.dtype), form.half_step)
        lost = (underflow + (2 * units + 1) * SMALLEST) * self.inflation
        size = self._magnitude(centre, least)
        radius = self._plus(lost, size, grown)
        if not self._is_exact(spread):
            radius = self.library.plus_times(radius, spread, grown + self.inflation)
        return self._seen(centre, size, radius, least)

    def _summed(self, centre: Value, sums: RoundedSums, spread: Array | float, least: float) -> Ball:
        form, sums = self._form(centre.dtype), replace(sums, signed=sums.signed and not self.magnitudes)
        underflow = max(self.precision.underflow(centre.dtype), form.half_step)
        lost = (2 * underflow + 3 * SMALLEST) * (sums.terms + 1) * self.inflation
        grown = self.inflation * (1 + 2.02 * worst_factor(sums.terms + 2, self.reference_unit, 0.0))
        if isinstance(self.model, Deterministic) and isinstance(sums.terms, int):
            factor = worst_factor(sums.roundings, sums.unit, sums.reference)
            radius = self._plus(lost, sums.magnitude, factor * grown)
        else:
            radius = self.model.spread(sums, self.library) * self._lifted(grown) + self._lifted(lost)
        if not self._is_exact(spread):
            radius = radius + spread * self._lifted((1 + form.unit) * grown)
        size = self._magnitude(centre, least)
        if self.step is not None:
            more = 2 * form.unit * (size + radius) + self._kept_short(sums, form, radius)
            radius = (radius + more) * self.inflation
        return self._seen(centre, size, self._spread_over(radius, centre), least)

    def _magnitude(self, centre: Value, least: float) -> Array:
        return centre.array if least >= 0 else abs(centre.array)

    def _plus(self, number: float, x: Array, factor: float) -> Array:
        """`number` + `factor` · x, in one operation."""
        if number not in self.numbers:
            self.numbers[number] = self._lift(number)
        return self.library.plus_times(self.numbers[number], x, factor)

    def _product_moved(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array | float:
        if self._is_exact(s):
            return 0.0 if self._is_exact(r) else r * y.size
        return x.size * s if self._is_exact(r) else x.size * s + r * (y.size + s)

    def _quotient_moved(self, x: Ball, r: Array | float, y: Ball, s: Array | float) -> Array | float:
        if self._is_exact(s):  # division by an exact 0 gives an infinity or NaN, which is seen
            return 0.0 if self._is_exact(r) else r / y.size
        return ball.quotient(self.xp, x.array, r, y.array, s, y.least)

    def _grown(self, sums: Array, terms: Any) -> Array:
        """`_summed` multiplies by the growth of both the magnitude and the spread."""
        return sums

    def _constant(self, number: Number, dtype: str) -> Ball:
        """See `Balls`; a constant that is subnormal, or too large, is not for these rules."""
        key = (type(number), number, dtype)
        if key in self.constants:
            return self.constants[key]
        made = super()._constant(number, dtype)
        size = abs(float(number)) if dtype in FORMATS else 0.0
        if 0 < size < self.least or LARGEST <= size < math.inf:
            self._see(self._lift(math.inf))
        else:
            self.constants[key] = made
        return made

    def _propagated(self, name: str, x: Ball, r: Array) -> Array:
        if name in SATURATING:  # a bound on their results says nothing about their operands
            self._see(self._lift(r))
        return super()._propagated(name, x, r)

    def _see(self, radius: Array) -> None:
        self.seen[id(radius)] = radius

    def _seen(self, centre: Value, size: Array, radius: Array, least: float) -> Ball:
        self._see(radius)
        ball = Ball(centre, radius, least)
        ball.__dict__["size"] = size  # what `Ball.size` would compute once more
        return ball

    def _lost_below(self, x: Ball, tiny: float) -> Array | float:
        return x.width

    def _factor(self, x: Ball) -> Array | float:
        """As in `Balls`: where factors are regrouped, one below `least` may be lost. So every ball grows by it."""
        return x.width if not self.regrouped or x.radius is None else x.radius + self.least * self.inflation

    def _of_finite(self, size: Array) -> Array:
        return size

    def _among_zeros(self, centre: Value, r: Array | float, radius: Array | float) -> Array:
        return radius

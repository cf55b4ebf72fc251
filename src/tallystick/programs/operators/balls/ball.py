"""Balls, how far errors propagate through functions, and the base of the algebra of balls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np

from tallystick.core.tensors import Tensor
from tallystick.programs.operators.algebra import Axes, Number
from tallystick.programs.operators.arrays import Array, ArrayLibrary
from tallystick.programs.operators.precision import (
    ANY,
    FORMATS,
    PLAIN,
    REFERENCE,
    Format,
    MathLibrary as Figures,
    Precision,
)
from tallystick.programs.operators.rounding import DETERMINISTIC, Model
from tallystick.programs.operators.values import Value, Values

INFLATION: Final = 1 + 2.0**-30
"""The factor by which radii grow to cover their own float64 rounding."""
INFLATIONS: Final = {"F64": INFLATION, "F32": 1 + 2.0**-14}
"""The same for each format of the reference. In F32 a formula has at most 12 roundings, and an exponential of an
argument up to 88 another 3 · 88: together less than 2⁻¹⁵."""


@dataclass(frozen=True, eq=False)
class Ball:
    """All values within `radius` of `centre` that are at least `least`; `radius` is `None` if all are exact.

    Integers and booleans are exact with radius 0, and unknown with an infinite radius.
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

    @cached_property
    def size(self) -> Array:
        """The magnitude of the centre; several primitives ask for it, and a weight is large."""
        return abs(self.array)

    @property
    def width(self) -> Array | float:
        """The radius, or 0."""
        return 0.0 if self.radius is None else self.radius


Operand: TypeAlias = Ball | Number
Move: TypeAlias = Callable[[Value], Value]


# How much the result of a function can change when its argument changes by at most a radius.
#
# Each function takes the array namespace, the argument `v`, its radius `r`, and a lower bound `least` of the true
# argument. It returns a bound on |f(x) − f(v)| over |x − v| ≤ r, x ≥ least; NaN or infinity if there is none. All are
# monotone, or their derivative is largest at the argument nearest to 0.

Propagation: TypeAlias = Callable[[Any, Array, Array, float], Array]


def exp(xp: Any, v: Array, r: Array, least: float) -> Array:
    """The change is eᵛ (eʳ − 1), or eᵛ⁺ʳ, which does not overflow where eᵛ is small."""
    return xp.where(r < 1, xp.exp(v) * xp.expm1(r), xp.exp(v + r))


def log(xp: Any, v: Array, r: Array, least: float) -> Array:
    """1/x is largest at the least argument."""
    low = _low(xp, v, r, least)
    return xp.where(low > 0, r / low, xp.where(r == 0, 0.0, math.inf))


def sin(xp: Any, v: Array, r: Array, least: float) -> Array:
    """Neither the slope nor the function exceeds 1; the cosine likewise."""
    return xp.where(r < 2, r, 2.0)


def tanh(xp: Any, v: Array, r: Array, least: float) -> Array:
    """1 − tanh² ≤ 4 e^(−2|x|) and ≤ 1."""
    slope = 4 * xp.exp(-2 * _nearest_0(xp, v, r))
    return xp.where(r < 2, r * xp.where(slope < 1, slope, 1.0), 2.0)


def erf(xp: Any, v: Array, r: Array, least: float) -> Array:
    """(2/√π) exp(−x²)."""
    near = _nearest_0(xp, v, r)
    return xp.where(r < 2, r * (2 / math.sqrt(math.pi)) * xp.exp(-near * near), 2.0)


def sigmoid(xp: Any, v: Array, r: Array, least: float) -> Array:
    """The slope s(1 − s) is at most e^(−|x|), and 1/4."""
    slope = xp.exp(-_nearest_0(xp, v, r))
    return xp.where(r < 4, r * xp.where(slope < 0.25, slope, 0.25), 1.0)


def sqrt(xp: Any, v: Array, r: Array, least: float) -> Array:
    """|√x − √v| = |x − v| / (√x + √v), and at most √r."""
    inside = xp.where(v > r, r / (xp.sqrt(v) + xp.sqrt(xp.where(v > r, v - r, 0.0))), xp.sqrt(r))
    return inside if least >= 0 else xp.where((v >= r) | (r == 0), inside, math.inf)


def rsqrt(xp: Any, v: Array, r: Array, least: float) -> Array:
    """1/√(v − r) − 1/√v = r / (√v √(v − r) (√v + √(v − r)))."""
    low = _low(xp, v, r, least)
    root, least_root = xp.sqrt(v), xp.sqrt(xp.where(low > 0, low, 0.0))
    return xp.where(low > 0, r / (root * least_root * (root + least_root)), math.inf)


PROPAGATIONS: Final[Mapping[str, Propagation]] = {
    "exp": exp,
    "expm1": exp,
    "log": log,
    "log1p": lambda xp, v, r, least: log(xp, 1 + v, r, 1 + least),
    "sin": sin,
    "cos": sin,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
}


def product(xp: Any, x: Array, r: Array, y: Array, s: Array) -> Array:
    """|(x + a)(y + b) − xy| over |a| ≤ r, |b| ≤ s."""
    return abs(x) * s + r * (abs(y) + s)


def quotient(xp: Any, x: Array, r: Array, y: Array, s: Array, least: float) -> Array:
    """|(x + a)/(y + b) − x/y|; infinite where the divisor may be 0."""
    size = abs(y)
    low = _low(xp, size, s, least)
    return xp.where((low > 0) & (size > 0), (abs(x) * (s / size) + r) / low, math.inf)


def power(xp: Any, x: Array, r: Array, y: Array, s: Array, least: float) -> Array:
    """For x > r: xʸ (exp(|y| log(x / (x − r)) + s (|log x| + log(x / (x − r)))) − 1), otherwise unbounded."""
    positive = x > r
    base = xp.where(positive, x, 1.0)
    slip = -xp.log1p(-xp.where(positive, r, 0.0) / base)
    exponent = abs(y) * slip + s * (abs(xp.log(base)) + slip)
    moved = xp.where(exponent < 1, base**y * xp.expm1(exponent), xp.exp(y * xp.log(base) + exponent))
    return xp.where(positive, moved, xp.where((r == 0) & (s == 0), 0.0, math.inf))


def whole_power(xp: Any, x: Array, r: Array, number: float) -> Array:
    """For a constant exponent ≥ 1: |number| (|x| + r)^(number − 1) r."""
    return number * (abs(x) + r) ** (number - 1) * r


def exponent_moved(xp: Any, power: Array, x: Array, r: Array, s: Array | float) -> Array:
    """|xʸ⁺ᵇ − xʸ| over |b| ≤ s: xʸ (exp(s |log x|) − 1), the logarithm at the end of the ball of x farther from 1."""
    if isinstance(s, float) and s == 0.0:
        return 0.0
    low = abs(x) - r
    reach = xp.where(low > 0, abs(xp.log(xp.where(low > 0, low, 1.0))), math.inf)
    high = abs(xp.log(abs(x) + r))
    moved = abs(power) * xp.expm1(s * xp.where(high > reach, high, reach))
    return xp.where((x == 0) & (r == 0), 0.0, moved)


def _low(xp: Any, v: Array, r: Array, least: float) -> Array:
    """The smallest possible argument."""
    low = v - r
    return xp.where(low > least, low, least) if math.isfinite(least) else low


def _nearest_0(xp: Any, v: Array, r: Array) -> Array:
    gap = abs(v) - r
    return xp.where(gap > 0, gap, 0.0)


@dataclass(frozen=True)
class Frame:
    """The algebra of balls over one array library, for devices of one precision and one table of library figures.

    `rescaling` is the number of roundings between tiles of a running sum, for fused kernels that rescale it. With
    `regrouped`, factors may be multiplied in another order, so that one near the ends of the range may be lost. With
    `step`, every F32 result may be rounded to that dtype. `plain` means that the operator computes nothing but sums.

    `reference` is the format in which centres and radii are computed. Nothing but the reference's own rounding depends
    on it: a ball holds all honest results around the centre that was computed, and the radius covers the rounding of
    this centre too. In F32 it is cheap, and for F32 twice as wide; it is not for F64 tensors.
    """

    library: ArrayLibrary
    precision: Precision = PLAIN
    model: Model = DETERMINISTIC
    figures: Figures = ANY
    rescaling: int = 0
    regrouped: bool = False
    step: str | None = None
    plain: bool = False
    reference: str = "F64"

    @cached_property
    def values(self) -> Values:
        """The algebra of the centres."""
        return Values(self.library, self.reference)

    @cached_property
    def reference_unit(self) -> float:
        """The unit roundoff of the reference."""
        return FORMATS[self.reference].unit

    @cached_property
    def inflation(self) -> float:
        """The factor by which radii grow to cover the rounding of their own computation."""
        return INFLATIONS[self.reference]

    @cached_property
    def lost(self) -> float:
        """The largest loss by one underflow of the reference, which F64 does not have for shorter formats."""
        return 0.0 if self.reference == "F64" else FORMATS[self.reference].smallest_normal

    @cached_property
    def within(self) -> float:
        """The share of a range that computed ends of balls may reach; below 1 where their rounding matters."""
        return 1.0 if self.reference == "F64" else 1 - 2.0**-20

    @property
    def xp(self) -> Any:
        """The array namespace."""
        return self.library.xp

    def load(self, tensor: Tensor) -> Ball:
        """The elements of a tensor, exactly."""
        return Ball(self.values.load(tensor))

    def radius(self, x: Ball) -> Array:
        """The radius as an array of the ball's shape."""
        return self._full(x.width, x)

    def released(self, x: Ball) -> Ball:
        """`x` without a bound."""
        return self._unknown(x.centre)

    def finite(self, x: Ball) -> Ball:
        """`x` without a bound where it is infinite or NaN."""
        return x if x.dtype not in FORMATS else self._open(x, ~self.xp.isfinite(x.array))

    def _discrete(self, centre: Value, *sources: Ball) -> Ball:
        """An integer or boolean result, unknown wherever a source is unknown."""
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
        unknown = self._total(self.library.convert(x.radius > 0, self.reference), axes, keep)
        return Ball(centre, self._unless(unknown == 0, centre))

    def _if_exact(self, centre: Value, *sources: Ball) -> Ball | None:
        return Ball(centre) if all(source.radius is None for source in sources) else None

    def _open(self, x: Ball, doubt: Array) -> Ball:
        """`x`, with an infinite radius where `doubt` is set."""
        if not bool(self.xp.any(doubt)):
            return x
        return replace(x, radius=self.xp.where(doubt, math.inf, self._full(x.width, x)))

    def _unknown(self, centre: Value) -> Ball:
        return Ball(centre, self._spread_over(math.inf, centre))

    def _unless(self, known: Array, centre: Value) -> Array:
        return self._spread_over(self.xp.where(known, 0.0, math.inf), centre)

    def _form(self, dtype: str) -> Format:
        """The format to which results of `dtype` may be rounded."""
        return FORMATS[self.step if self.step is not None and dtype == "F32" else dtype]

    def _pair(self, x: Operand, y: Operand) -> tuple[Ball, Ball]:
        if isinstance(x, Ball):
            return x, y if isinstance(y, Ball) else self._constant(y, x.dtype)
        assert isinstance(y, Ball), "two numbers are no operands"
        return self._constant(x, y.dtype), y

    def _constant(self, number: Number, dtype: str) -> Ball:
        """The ball of a constant: a number rounded to `dtype`, or unrounded, as some kernels keep it."""
        centre = self.values.full((), number, dtype)
        if dtype not in FORMATS:
            return Ball(centre)
        held = float(centre.array)
        gap = abs(held - float(number)) if math.isfinite(held) else 0.0
        gap += 0.0 if self.step is None else _loss(held, self._form(dtype))
        least = held - gap if held >= gap else -math.inf
        return Ball(centre, self.library.asarray(gap * self.inflation, self.reference) if gap > 0 else None, least)

    def _moved(self, x: Ball, move: Move) -> Ball:
        radius = None if x.radius is None else move(Value(x.radius, "F64")).array
        return Ball(move(x.centre), radius, x.least)

    def _over(self, radius: Array, move: Callable[..., Value], *arguments: Any) -> Array:
        return move(Value(radius, "F64"), *arguments).array

    def _apart(self, x: Ball, y: Ball) -> Array:
        """|x − y|; 0 between equal infinities."""
        a, b = (self.library.convert(ball.array, "F64") for ball in (x, y))
        apart = self.xp.where(a == b, 0.0, abs(a - b))
        return self.library.convert(apart * self.inflation, self.reference) if self.lost else apart

    def _total(self, array: Array, axes: Axes, keep: bool) -> Array:
        return self._over(array, self.values.sum, axes, keep)

    def _hull(self, value: Array, low: Array, high: Array) -> Array:
        """The radius that reaches from `value` to both ends; grown, because the ends are themselves rounded."""
        up, down = high - value, value - low
        reach = self.xp.where((up > down) | (up != up), up, down)  # NaN if either end is
        reach = self.xp.where(reach > 0, reach * self.inflation + 2 * REFERENCE.unit * abs(value), reach)
        return self.library.convert(reach, self.reference) if self.lost else reach

    def _wide(self, x: Array) -> Array:
        """Floats in F64, in which the ends of a narrow ball differ from its centre."""
        return self.library.convert(x, "F64") if self.lost else x

    def _joined(self, r: Array | float, s: Array | float) -> Array | float:
        """The sum of two radii, without an operation where one is exact."""
        if self._is_exact(r) or self._is_exact(s):
            return s if self._is_exact(r) else r
        return r + s

    def _widest(self, r: Array | float) -> float:
        return r if isinstance(r, float) else float(self.xp.max(r)) if r.size else 0.0

    def _larger(self, x: Array, y: Array) -> Array:
        return self.xp.where(x > y, x, y)

    def _lift(self, x: Array | float) -> Array:
        return self.library.asarray(x, self.reference) if isinstance(x, int | float) else x

    def _lift_bool(self, x: Array | bool) -> Array:
        return self.library.asarray(x, "BOOL") if isinstance(x, bool) else x

    def _some(self, r: Array | float) -> Array:
        return self._lift(r) > 0

    def _lifted(self, numbers: Any) -> Any:
        return float(numbers) if np.ndim(numbers) == 0 else self.library.asarray(numbers, self.reference)

    def _full(self, r: Array | float, x: Ball) -> Array:
        return self._spread_over(r, x.centre)

    def _spread_over(self, r: Array | float, centre: Value) -> Array:
        return self.xp.broadcast_to(self._lift(r), centre.shape)

    def _finite(self, x: Array) -> Array:
        return self.xp.isfinite(self._lift(x))

    def _is_exact(self, r: Array | float) -> bool:
        return isinstance(r, float) and r == 0.0


def _loss(number: float, form: Format) -> float:
    """The largest change of a constant by rounding it to a format; 0 if the format holds it exactly."""
    mantissa, _ = math.frexp(number)
    has_digits = math.ldexp(mantissa, form.bits).is_integer() if math.isfinite(number) else True
    relative = 0.0 if has_digits else form.unit * abs(number)
    return relative if not abs(number) < form.smallest_normal else max(relative, min(abs(number), form.half_step))

"""How much the result of a function can change when its argument changes by at most a radius.

Each function takes the array namespace, the argument `v`, its radius `r`, and a lower bound `least` of the true
argument. It returns a bound on |f(x) − f(v)| over |x − v| ≤ r, x ≥ least; NaN or infinity if there is none. All are
monotone, or their derivative is largest at the argument nearest to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Array: TypeAlias = Any
Propagation: TypeAlias = Callable[[Any, Array, Array, float], Array]


def exp(xp: Any, v: Array, r: Array, least: float) -> Array:
    """Eᵛ (eʳ − 1), or eᵛ⁺ʳ, which does not overflow where eᵛ is small."""
    return xp.where(r < 1, xp.exp(v) * xp.expm1(r), xp.exp(v + r))


def log(xp: Any, v: Array, r: Array, least: float) -> Array:
    """1/x is largest at the least argument."""
    low = _low(xp, v, r, least)
    return xp.where(low > 0, r / low, xp.where(r == 0, 0.0, math.inf))


def log1p(xp: Any, v: Array, r: Array, least: float) -> Array:
    """As the logarithm of 1 + v."""
    return log(xp, 1 + v, r, 1 + least)


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
    """S(1 − s) ≤ e^(−|x|) and ≤ 1/4."""
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


def expm1(xp: Any, v: Array, r: Array, least: float) -> Array:
    """As the exponential."""
    return exp(xp, v, r, least)


PROPAGATIONS: Final[Mapping[str, Propagation]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
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


def hull(xp: Any, value: Array, low: Array, high: Array) -> Array:
    """The distance from `value` to the farther end; NaN if either end is."""
    up, down = high - value, value - low
    return xp.where((up > down) | (up != up), up, down)


def _low(xp: Any, v: Array, r: Array, least: float) -> Array:
    """The smallest possible argument."""
    low = v - r
    return xp.where(low > least, low, least) if math.isfinite(least) else low


def _nearest_0(xp: Any, v: Array, r: Array) -> Array:
    gap = abs(v) - r
    return xp.where(gap > 0, gap, 0.0)

"""Powers and logarithms of two in integer operations, and the numbers that all samplers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tallystick.core.errors import MalformedError

if TYPE_CHECKING:
    from tallystick.programs.operators.algebra import Integers, X

# Powers and logarithms of two in integer operations alone, so that every engine gets the same bits.
#
# A number x is stored as the I64 ⌊x·2³²⌋, its *key*. 2ˣ for x ≤ 0 is stored as a *weight*, an I64 of scale 2⁴⁰.
# Functions are polynomials with integer coefficients within one octave. Every product is below 2⁶³, and every quotient
# by a power of two is a shift, which rounds down. The polynomials are the definition. Their error against the functions
# they are named after (2⁻²⁸ or less) affects quality, but engines agree whatever it is.

KEY_BITS: Final = 32
ONE: Final = 1 << KEY_BITS
"""The key of 1."""
WEIGHT_BITS: Final = 40
WEIGHT_ONE: Final = 1 << WEIGHT_BITS
"""The weight of key 0."""
UNIFORM_BITS: Final = 53
EXP2: Final = (1488522236, 515882500, 119194166, 20654619, 2863348, 332032, 32851)
"""(2ᶠ − 1) / f for |f| ≤ ½, times 2³¹, lowest power first; Chebyshev interpolation of degree 6."""
LOG2: Final = (
    *(3098164010, -1549082014, 1032721259, -774539038, 619638058, -516475827),
    *(442535501, -384509593, 342122074, -337641402, 329537528, -181108485),
)
"""log₂(1 + f) / f for √½ ≤ 1 + f ≤ √2, times 2³¹, lowest power first; Chebyshev interpolation of degree 11."""
ROOT: Final = 6521908912666391106
"""⌊√2·2⁶²⌋"""
TAIL: Final = (1549082007, 645450069, 387318997, 268876068, 216882270, 94776803, 305168180)
"""log₂(−ln(1 − t) / t) / t for 0 < t < ¼, times 2³¹, lowest power first; Chebyshev interpolation of degree 6."""
LOG2_LN2: Final = -2271034279
"""log₂(ln 2), a key."""


def exp2(a: Integers[X], key: X) -> X:
    """The weight ≈ 2⁴⁰·2^(key / 2³²) of a key ≤ 0: 2⁴⁰ for 0, and 0 below about −40·2³²."""
    octaves = a.shift_right(a.sub(ONE // 2, key), KEY_BITS)
    f = a.add(key, a.mul(octaves, ONE))
    power = a.add(a.shift_right(a.mul(_polynomial(a, EXP2, f), f), 23), WEIGHT_ONE)
    return a.shift_right(power, a.where(a.compare(octaves, 62, "gt"), 62, octaves))


def log2(a: Integers[X], number: X) -> X:
    """The key ≈ 2³²·log₂(number) of an I64 ≥ 1; exact for powers of two."""
    zero = a.sub(number, number)
    mantissa, exponent = number, a.add(zero, 62)
    for places in (32, 16, 8, 4, 2, 1):
        is_small = a.compare(mantissa, 1 << (63 - places), "lt")
        exponent = a.where(is_small, a.sub(exponent, places), exponent)
        mantissa = a.mul(mantissa, a.where(is_small, a.add(zero, 1 << places), 1))
    is_above = a.compare(mantissa, ROOT, "gt")
    f = a.sub(a.where(is_above, a.shift_right(mantissa, 31), a.shift_right(mantissa, 30)), ONE)
    whole = a.mul(a.where(is_above, a.add(exponent, 1), exponent), ONE)
    return a.add(whole, a.shift_right(a.mul(_polynomial(a, LOG2, f), f), 31))


def uniform(a: Integers[X], word: X) -> X:
    """The odd number v of [1, 2⁵³) from the leading 52 bits of a word: v / 2⁵³ lies in (0, 1), symmetric about ½."""
    leading = a.shift_right(word, 64 - UNIFORM_BITS + 1)
    unsigned = a.where(a.compare(leading, 0, "lt"), a.add(leading, 1 << (UNIFORM_BITS - 1)), leading)
    return a.add(a.mul(unsigned, 2), 1)


def gumbel(a: Integers[X], word: X) -> X:
    """The key ≈ −2³²·log₂(−log₂(1 − v / 2⁵³)), v = `uniform(word)`: a Gumbel variable in units of ln 2.

    Where v / 2⁵³ = t < ¼, the result is −log₂ t − log₂(−ln(1 − t) / t) + log₂(ln 2), in which nothing cancels.
    """
    v = uniform(a, word)
    is_tail = a.compare(v, 1 << (UNIFORM_BITS - 2), "lt")
    inner = a.sub(UNIFORM_BITS * ONE, log2(a, a.sub(1 << UNIFORM_BITS, v)))
    t = a.shift_right(a.where(is_tail, v, 0), UNIFORM_BITS - KEY_BITS)
    series = a.shift_right(a.mul(_polynomial(a, TAIL, t), t), 31)
    offset = a.where(is_tail, a.sub(UNIFORM_BITS * ONE + LOG2_LN2, series), KEY_BITS * ONE)
    return a.sub(offset, log2(a, a.where(is_tail, v, inner)))


def _polynomial(a: Integers[X], coefficients: Sequence[int], f: X) -> X:
    """Horner's rule; `f` has the scale 2³²."""
    *lower, last, highest = coefficients
    result = a.add(a.shift_right(a.mul(f, highest), KEY_BITS), last)
    for coefficient in reversed(lower):
        result = a.add(a.shift_right(a.mul(result, f), KEY_BITS), coefficient)
    return result


# The numbers that all implementations of the sampler share: sizes, limits, and factors computed from settings.
#
# The operators of `programs.operators.tally.sampling` define their meaning; `spec/sampler.md` specifies it.

VOCABULARY_BITS: Final = 20
VOCABULARY_MAX: Final = 1 << VOCABULARY_BITS
MASKED: Final = -(1 << 62)
LOWEST: Final = -(1 << 47)
"""The lowest key of a token that is not masked: weight 2⁻³²⁷⁶⁸."""
KEYS_PER_LOGIT: Final = float.fromhex("0x1.71547652b82fep+32")
"""log₂(e)·2³², to nearest."""
SCALE_MAX: Final = 2.0**100
NORMAL: Final = 2.0**-126
"""Smaller logits count as 0: some devices flush F32 numbers below it."""
FINITE: Final = float.fromhex("0x1.fffffep+127")
"""The number that replaces +∞: the largest F32."""
PENALTY_MIN: Final = 1e-2
PENALTY_MAX: Final = 1e2
SHARE_BITS: Final = 30
WORD_BITS: Final = 62


def penalty_factors(penalty: float) -> tuple[float, float]:
    """The factors of logits above 0 and of other logits: 1 / penalty and penalty, each rounded to F32."""
    if not PENALTY_MIN <= penalty <= PENALTY_MAX:
        raise MalformedError(f"penalty is {penalty!r:.40}, outside {PENALTY_MIN} to {PENALTY_MAX}")
    return float(np.float32(1 / penalty)), float(np.float32(penalty))


def logit_scale(temperature: float) -> float:
    """Keys per logit: log₂(e)·2³² / temperature in F64, at most 2¹⁰⁰; temperature 0 counts as 1."""
    if not 0.0 <= temperature < math.inf:
        raise MalformedError(f"temperature is {temperature!r:.40}, no finite number from 0 on")
    return min(KEYS_PER_LOGIT / max(temperature or 1.0, 2.0**-100), SCALE_MAX)


def share_of(p: float, what: str) -> int:
    """`p` times 2³⁰, to the nearest integer, ties to even."""
    if not 0.0 <= p <= 1.0:
        raise MalformedError(f"{what} is {p!r:.40}, no share from 0 to 1")
    return round(p * (1 << SHARE_BITS))


def rounded_share(p: float, what: str) -> float:
    """`p` as filters read it: rounded to 30 bits."""
    return share_of(p, what) / (1 << SHARE_BITS)

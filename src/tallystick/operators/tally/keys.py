"""The numbers that all implementations of the sampler share: sizes, limits, and factors computed from settings.

The operators of `operators.tally.sampling` define their meaning; `spec/sampler.md` specifies it.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tallystick.errors import MalformedError

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

"""Evidence that accumulates with every token: e-values against an honest provider, and in favour of one.

For an honest provider, an *e-value* reaches x with probability at most 1/x. Here it is a product of one factor per
token. Given everything before, each factor has mean at most 1: a test supermartingale M with M_0 = 1. Ville's
inequality (Ville 1939; Ramdas et al., *Game-theoretic statistics and safe anytime-valid inference*, 2023, §2.3):

    P(there is an n with M_n >= 1/α) <= α

So the verifier may look after every token and every receipt and stop at any time. It still accuses an honest provider
with probability at most α. Logarithms of e-values add over tokens and over receipts. A mean of e-values with fixed
weights is an e-value. Each test below states what it means by honest. Tokens may depend on one another in any way:
every condition is on the next token given all before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

RATES = 12
LARGEST_RATE = 0.9

Decision = Literal["rejected", "accepted", "inconclusive"]


@dataclass(frozen=True)
class Trials:
    """The number of tokens examined, and how many of them the claimed sampler does not explain."""

    tokens: int = 0
    mismatches: int = 0

    def __add__(self, other: Trials) -> Trials:
        return Trials(self.tokens + other.tokens, self.mismatches + other.mismatches)


@dataclass(frozen=True)
class MismatchTest:
    """Honest: P(mismatch | everything before) ≤ `honest`. Dishonest: that probability is ≥ `dishonest`.

    Against honesty, the factor of a token at a rate p > p0 = `honest` is p/p0 for a mismatch and (1 − p)/(1 − p0) for
    a match. Its mean grows with the true rate and is 1 at p0. The e-value is the mean over `rates`. In favour of
    honesty, the factor is p0/p1 or (1 − p0)/(1 − p1) with p1 = `dishonest`. Its mean falls with the true rate and is 1
    at p1. So a dishonest provider reaches 1/β here with probability at most β (Wald 1945, with Ville's bound).
    """

    honest: float
    dishonest: float

    def __post_init__(self) -> None:
        assert 0.0 < self.honest < self.dishonest < 1.0

    @property
    def rates(self) -> tuple[float, ...]:
        """The dishonest rates over which the e-value is averaged, in geometric progression."""
        lowest = min(2.0 * self.honest, math.sqrt(self.honest))
        return tuple(float(rate) for rate in np.geomspace(lowest, max(LARGEST_RATE, lowest), RATES))

    def against(self, trials: Trials) -> float:
        """The natural logarithm of the e-value against an honest provider."""
        return log_mean(_log_ratio(trials, rate, self.honest) for rate in self.rates)

    def in_favour(self, trials: Trials) -> float:
        """The natural logarithm of the e-value against a dishonest one."""
        return _log_ratio(trials, self.honest, self.dishonest)

    def tokens_missing(self, trials: Trials, beta: float) -> int:
        """How many more tokens without a mismatch are needed until `in_favour` reaches 1/β."""
        per_match = _log_ratio(Trials(1, 0), self.honest, self.dishonest)
        return max(0, math.ceil((-math.log(beta) - self.in_favour(trials)) / per_match - 1e-9))


def log_mean(logarithms: Iterable[float]) -> float:
    """The logarithm of the arithmetic mean of numbers given by their logarithms."""
    values = list(logarithms)
    largest = max(values)
    if not math.isfinite(largest):
        return largest
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values) / len(values))


def _log_ratio(trials: Trials, rate: float, other: float) -> float:
    matches = trials.tokens - trials.mismatches
    return trials.mismatches * math.log(rate / other) + matches * (math.log1p(-rate) - math.log1p(-other))

"""Evidence that grows with every token: e-values against an honest provider, and for one.

An *e-value* is a number that an honest provider makes at least x with probability 1/x at most. Here it is a product of
one factor per token, each with mean 1 at most whatever came before: a test supermartingale M with M_0 = 1. Ville's
inequality (Ville 1939; Ramdas et al., *Game-theoretic statistics and safe anytime-valid inference*, 2023, §2.3):

    P(there is an n with M_n >= 1/α) <= α

so that one may look after every token and every receipt, stop when one likes, and still accuse an honest provider with
probability α at most. Logarithms of e-values add over tokens and over receipts; a mean of e-values with fixed weights
is an e-value. What honest means is each test's own statement, below. Nothing is assumed of how tokens depend on one
another: every condition is on the next token given all before it.
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
    """How many tokens were looked at, and how many of them the claimed sampler does not explain."""

    tokens: int = 0
    mismatches: int = 0

    def __add__(self, other: Trials) -> Trials:
        return Trials(self.tokens + other.tokens, self.mismatches + other.mismatches)


@dataclass(frozen=True)
class MismatchTest:
    """Honest: P(mismatch | everything before) ≤ `honest`. Dishonest: that probability is ≥ `dishonest`.

    Against honesty, the factor of a token at a rate p > p0 = `honest` is p/p0 for a mismatch and (1 − p)/(1 − p0) for
    a match; its mean grows with the true rate and is 1 at p0. The e-value is the mean over `rates`. For honesty, the
    factor is p0/p1 or (1 − p0)/(1 − p1) with p1 = `dishonest`, whose mean falls with the true rate and is 1 at p1: a
    dishonest provider makes this one reach 1/β with probability β at most (Wald 1945, with Ville's bound).
    """

    honest: float
    dishonest: float

    def __post_init__(self) -> None:
        assert 0.0 < self.honest < self.dishonest < 1.0

    @property
    def rates(self) -> tuple[float, ...]:
        """The dishonest rates that the e-value is a mean over, in geometric progression."""
        lowest = min(2.0 * self.honest, math.sqrt(self.honest))
        return tuple(float(rate) for rate in np.geomspace(lowest, max(LARGEST_RATE, lowest), RATES))

    def against(self, trials: Trials) -> float:
        """The natural logarithm of the e-value against an honest provider."""
        return log_mean(_log_ratio(trials, rate, self.honest) for rate in self.rates)

    def in_favour(self, trials: Trials) -> float:
        """The natural logarithm of the e-value against a dishonest one."""
        return _log_ratio(trials, self.honest, self.dishonest)

    def tokens_missing(self, trials: Trials, beta: float) -> int:
        """How many more tokens, none of them a mismatch, make `in_favour` reach 1/β."""
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

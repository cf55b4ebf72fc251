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
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

SHARES: Final = tuple(float(share) for share in np.geomspace(2e-3, 0.9, 12))
"""The shares of tokens chosen otherwise over which the e-value is averaged, in geometric progression."""

Decision = Literal["rejected", "accepted", "inconclusive"]
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MarginRates:
    """How often an honest token has a margin that reaches m logits, at most, given everything before it.

    `points` are pairs (m, rate); m rises from 0, where every margin that is not 0 counts, and the rate falls.
    """

    points: tuple[tuple[float, float], ...]

    def wagers(self, margins: Reals) -> Reals:
        """An e-value of each margin: the mean over the points of 1 / rate where the margin reaches m, else 0."""
        found = [np.where((margins > 0.0) & (margins >= least), 1.0 / rate, 0.0) for least, rate in self.points]
        return np.asarray(np.mean(found, axis=0))

    def rate(self, margin: float) -> float:
        """How often an honest margin reaches `margin`, at most: log-linear between the points, constant beyond."""
        margins, rates = zip(*self.points, strict=True)
        return 1.0 if margin <= 0.0 else float(np.exp(np.interp(margin, margins, np.log(rates))))


@dataclass(frozen=True)
class Trials:
    """The tokens examined, how many of them lie beyond the tie band, and the logarithms of their e-values by share.

    Entry i of `graded` sums ln(1 − λ + λ·w) over tokens, with λ of `SHARES` and the wager w on the token's margin.
    """

    tokens: int = 0
    mismatches: int = 0
    graded: tuple[float, ...] = (0.0,) * len(SHARES)

    def __add__(self, other: Trials) -> Trials:
        graded = tuple(a + b for a, b in zip(self.graded, other.graded, strict=True))
        return Trials(self.tokens + other.tokens, self.mismatches + other.mismatches, graded)

    @classmethod
    def of(cls, margins: Reals, band: float, rates: MarginRates) -> Trials:
        """The trials of tokens with these margins."""
        graded = np.log1p(np.array(SHARES)[:, None] * (rates.wagers(margins) - 1.0)).sum(axis=1)
        beyond = np.count_nonzero(~(margins <= band))
        return cls(len(margins), int(beyond), tuple(float(each) for each in graded))

    def log_against(self) -> float:
        """The natural logarithm of the e-value against an honest provider."""
        return log_mean(self.graded)


@dataclass(frozen=True)
class MismatchTest:
    """Honest: P(mismatch | everything before) ≤ `honest`. Dishonest: that probability is ≥ `dishonest`.

    In favour of honesty, the factor of a token is p0/p1 for a mismatch and (1 − p0)/(1 − p1) for a match, with
    p0 = `honest` and p1 = `dishonest`. Its mean falls with the true rate and is 1 at p1. So a dishonest provider
    reaches 1/β with probability at most β (Wald 1945, with Ville's bound).
    """

    honest: float
    dishonest: float

    def __post_init__(self) -> None:
        assert 0.0 < self.honest < self.dishonest < 1.0

    def in_favour(self, trials: Trials) -> float:
        """The natural logarithm of the e-value against a dishonest provider."""
        matches = trials.tokens - trials.mismatches
        per_mismatch = math.log(self.honest / self.dishonest)
        return trials.mismatches * per_mismatch + matches * self._per_match

    def tokens_missing(self, trials: Trials, beta: float) -> int:
        """How many more tokens without a mismatch are needed until `in_favour` reaches 1/β."""
        return max(0, math.ceil((-math.log(beta) - self.in_favour(trials)) / self._per_match - 1e-9))

    @property
    def _per_match(self) -> float:
        return math.log1p(-self.honest) - math.log1p(-self.dishonest)


def log_mean(logarithms: Iterable[float]) -> float:
    """The logarithm of the arithmetic mean of numbers given by their logarithms."""
    values = list(logarithms)
    largest = max(values)
    if not math.isfinite(largest):
        return largest
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values) / len(values))

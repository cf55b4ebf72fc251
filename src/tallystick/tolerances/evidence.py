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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

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


@dataclass(frozen=True)
class Likelihoods:
    """Summed log likelihood ratios of a stream of tokens: each named alternative against the claimed sampler, and back.

    Honest: given everything before, token c has probability ≤ p̄(c). For any distribution q, q(c)/p̄(c) has mean
    Σ p q/p̄ ≤ Σ q = 1 at most. Where logits are known to a spread b (`discount`), p̄ = p·exp(b/T). The way back,
    p̲(c)/q(c), has mean 1 at most where tokens come from q, and says how much speaks against that alternative alone.
    """

    names: tuple[str, ...] = ()
    against: tuple[float, ...] = ()
    in_favour: tuple[float, ...] = ()
    tokens: int = 0

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.against) == len(self.in_favour)

    def __add__(self, other: Likelihoods) -> Likelihoods:
        if not (self.tokens and other.tokens):
            return self if self.tokens else other
        assert self.names == other.names, "likelihoods of different alternatives do not add"
        return Likelihoods(
            self.names,
            tuple(a + b for a, b in zip(self.against, other.against, strict=True)),
            tuple(a + b for a, b in zip(self.in_favour, other.in_favour, strict=True)),
            self.tokens + other.tokens,
        )

    @classmethod
    def of(cls, names: Sequence[str], against: np.ndarray, in_favour: np.ndarray) -> Self:
        """The sums of per-token logarithms F64 [alternatives, tokens]."""
        return cls(
            tuple(names),
            tuple(float(each) for each in against.sum(axis=1)),
            tuple(float(each) for each in in_favour.sum(axis=1)),
            int(against.shape[1]),
        )

    @property
    def closest(self) -> str:
        """The alternative that fits the tokens best."""
        return self.names[int(np.argmax(self.against))] if self.tokens else ""

    def log_against(self) -> float:
        """The logarithm of the mean e-value over the alternatives; 0 where nothing was seen."""
        return log_mean(self.against) if self.tokens else 0.0

    def tokens_missing(self, name: str, beta: float) -> int | None:
        """How many more tokens like these exclude the alternative `name` at error β; None where they never will."""
        place = self.names.index(name)
        missing = -math.log(beta) - self.in_favour[place]
        if missing <= 0:
            return 0
        drift = self.in_favour[place] / self.tokens if self.tokens else 0.0
        return math.ceil(missing / drift) if drift > 0 else None


def discount(spread: float, temperature: float, rms: float | None = None) -> float:
    """How much a token's log probability may differ between two honest parties, in nats.

    Worst case: where every pair of logits moves apart by at most `spread` b = 2·max|Δ|, both log w(c) and the log of
    the normaliser move by b/2T at most, so |Δ log p| ≤ b/T. With `rms` σ instead: where the moves are independent, of
    mean 0 and sub-Gaussian with parameter σ, and independent of the draw, Jensen's inequality for the normaliser gives
    E[p*(c)/p(c)] ≤ E exp((δ_c − Σ p_j δ_j)/T) ≤ exp(σ²‖e_c − p‖²/2T²) ≤ exp(σ²/T²), the mean that an e-value needs.
    """
    worst = spread / temperature
    return worst if rms is None else min(worst, (rms / temperature) ** 2)


def decide(against: float, in_favour: float, alpha: float, beta: float) -> Decision:
    """What both logarithms say: rejected at 1/α, else accepted at 1/β, else not enough evidence."""
    if against >= -math.log(alpha):
        return "rejected"
    return "accepted" if in_favour >= -math.log(beta) else "inconclusive"


def restarted(log_factors: Iterable[float]) -> list[float]:
    """The logarithm of a detector that may start anew at every token: R_n = e_n·(R_{n−1} + 1), R_0 = 0.

    Shiryaev–Roberts with e-values (Shin, Ramdas & Rinaldo, *E-detectors*, 2024, §2.3): an honest stream is accused at
    R ≥ 1/α after 1/α tokens on average at the earliest. A provider who turns dishonest after a long honest stretch is
    found as soon as one that always was. The guarantee is one of mean time to a false alarm, not of one alarm ever.
    """
    found, value = [], -math.inf
    for factor in log_factors:
        value = float(np.logaddexp(value, 0.0)) + factor
        found.append(value)
    return found


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

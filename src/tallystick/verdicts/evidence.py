"""Evidence that accumulates: e-values, likelihood ratios, and exact confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np
import numpy.typing as npt

# Exact two-sided confidence intervals of a proportion (Clopper & Pearson 1934).

HALVINGS = 60


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the success rate at the given confidence; 0 of 1,000 gives (0, 0.0037).

    The caller ensures `0 ≤ successes ≤ trials` and `trials ≥ 1`.
    """
    assert 0 <= successes <= trials, f"{successes} successes in {trials} trials"
    assert trials >= 1
    tail = (1.0 - confidence) / 2
    low = 0.0 if successes == 0 else _crossing(lambda p: at_least(successes, trials, p) > tail)
    high = 1.0 if successes == trials else _crossing(lambda p: 1.0 - at_least(successes + 1, trials, p) < tail)
    return low, high


def at_least(successes: int, trials: int, rate: float) -> float:
    """P(at least `successes` in `trials`) for independent trials that succeed with probability `rate`."""
    if successes == 0 or rate >= 1.0:
        return 1.0
    if rate <= 0.0:
        return 0.0
    terms = (_probability(count, trials, rate) for count in range(successes, trials + 1))
    return min(1.0, math.fsum(terms))


def _probability(count: int, trials: int, rate: float) -> float:
    """P(exactly `count` in `trials`): the binomial distribution, by logarithms."""
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return math.exp(ways + count * math.log(rate) + (trials - count) * math.log1p(-rate))


def _crossing(is_above: Callable[[float], bool]) -> float:
    """The point in [0, 1] where a monotone condition becomes true, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2


# Evidence that accumulates with every token: e-values against an honest provider, and in favour of one.
#
# For an honest provider, an *e-value* reaches x with probability at most 1/x. Here it is a product of one factor per
# token. Given everything before, each factor has mean at most 1: a test supermartingale M with M_0 = 1. Ville's
# inequality (Ville 1939; Ramdas et al., *Game-theoretic statistics and safe anytime-valid inference*, 2023, §2.3):
#
#     P(there is an n with M_n >= 1/α) <= α
#
# So the verifier may look after every token and every receipt and stop at any time. It still accuses an honest provider
# with probability at most α. Logarithms of e-values add over tokens and over receipts. A mean of e-values with fixed
# weights is an e-value. Each test below states what it means by honest. Tokens may depend on one another in any way:
# every condition is on the next token given all before it.

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
        wagers = [np.where((margins > 0.0) & (margins >= least), 1.0 / rate, 0.0) for least, rate in self.points]
        return np.asarray(np.mean(wagers, axis=0))

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
        return cls(len(margins), int(beyond), tuple(float(part) for part in graded))

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


# E-values from token probabilities: likelihood ratios between the claimed sampler and alternatives to it.


@dataclass(frozen=True)
class Likelihoods:
    """Summed log likelihood ratios of a stream of tokens, in nats, one pair of sums for each named alternative.

    Honest means: given everything before, token c has probability ≤ p̄(c). Then for any distribution q, the ratio
    q(c)/p̄(c) has mean Σ p q/p̄ ≤ Σ q = 1; `against` sums its logarithms. If logits are known to a spread b
    (`discount`), p̄ = p·exp(b/T). If the tokens come from q instead, p̲(c)/q(c) has mean at most 1; `in_favour` sums
    its logarithms, as evidence against this one alternative.
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
        """Sum per-token logarithms, each array F64 [alternatives, tokens]."""
        return cls(
            tuple(names),
            tuple(float(part) for part in against.sum(axis=1)),
            tuple(float(part) for part in in_favour.sum(axis=1)),
            int(against.shape[1]),
        )

    @property
    def named(self) -> tuple[str, ...]:
        """The alternatives that may fit: temperatures, and of the others those that would have chosen differently."""
        tried = zip(self.names, self.in_favour, strict=True)
        return tuple(name for name, evidence in tried if evidence != 0.0 or name.startswith("temperature"))

    @property
    def closest(self) -> str:
        """The alternative that fits the tokens best."""
        return self.names[int(np.argmax(self.against))] if self.tokens else ""

    def log_against(self) -> float:
        """The logarithm of the mean e-value over the alternatives; 0 without tokens."""
        return log_mean(self.against) if self.tokens else 0.0

    def tokens_missing(self, name: str, beta: float) -> int | None:
        """How many more tokens like these exclude the alternative `name` at error β; None if they never will."""
        evidence = self.in_favour[self.names.index(name)]
        missing = -math.log(beta) - evidence
        if missing <= 0:
            return 0
        drift = evidence / self.tokens if self.tokens else 0.0
        return math.ceil(missing / drift) if drift > 0 else None


def discount(spread: float, temperature: float, rms: float | None = None) -> float:
    """How much a token's log probability may differ between two honest parties, in nats.

    Worst case: every pair of logits moves apart by at most `spread` b = 2·max|Δ|. Then both log w(c) and the log of the
    normaliser move by at most b/2T, so |Δ log p| ≤ b/T.

    With `rms` σ: the moves are of mean 0, of variance σ² and independent of the draw. Then, to second order,
    E[p*(c)/p(c)] ≤ 1 + σ²‖e_c − p‖²/2T² in the mean over the moves, and the mean of ‖e_c − p‖² over draws of c is at
    most 1: exp(σ²/2T²) bounds the mean of a factor. The smaller of the two is returned.
    """
    worst = spread / temperature
    return worst if rms is None else min(worst, 0.5 * (rms / temperature) ** 2)


# Evidence that numbers vary more than honest rounding makes them: an e-value for each number, which multiply.
#
# Honest: given everything before, a residual r is sub-Gaussian with variance v at most. Then for every scale s > 1
#
#     E[ exp((1 − 1/s²) r² / 2v) / s ] ≤ 1
#
# because E[exp(λ r²/v)] ≤ (1 − 2λ)^(−1/2) for such an r. This is the likelihood ratio of a normal number with deviation
# s√v against one with √v. Products of these factors are e-values, and so are means of products with fixed weights; by
# Ville's inequality one ever reaches 1/α with probability α at most (`verdicts.evidence`).
#
# Of a fingerprint, random signs make every number such a sum: with a rounding error ΔH of a block, the number of it is
# Σ σᵢ Σ rⱼ ΔHᵢⱼ, of mean 0 and variance ‖ΔH‖² over the signs, whatever ΔH is (`verdicts.fingerprints`).

SCALES: Final = (1.25, 1.5, 2.0, 3.0, 8.0)
"""How many times larger than honest numbers others are thought to be; the e-value is the mean over these."""
CHANGED: Final = 0.2
"""The share of blocks that are thought to be changed, where blocks are judged one by one."""
LARGEST: Final = 1e4
"""The most deviations that a single residual counts for."""


@dataclass(frozen=True)
class ScaleTrials:
    """Of each group of numbers: how many there are, their sum of squares, and the logarithms of their e-values.

    Squares are in units of the honest variance. `logs` has a row for each of `groups`, with an entry for each scale.
    `by_block` is the logarithm of the e-value in which every block of numbers has a scale of its own, or none.
    """

    groups: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    squares: tuple[float, ...] = ()
    logs: tuple[tuple[float, ...], ...] = ()
    by_block: float = 0.0

    def __add__(self, other: Self) -> Self:
        if not (self.groups and other.groups):
            return self if self.groups else other
        assert self.groups == other.groups, "numbers of different places do not add"
        return type(self)(
            self.groups,
            tuple(a + b for a, b in zip(self.numbers, other.numbers, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
            tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(self.logs, other.logs, strict=True)),
            self.by_block + other.by_block,
        )

    @classmethod
    def of(cls, residuals: Mapping[str, Reals], variances: Mapping[str, Reals]) -> Self:
        """The trials of residuals by group, each F64[blocks, numbers]; variances have the same shapes."""
        squares = {name: _squares(part, variances[name]) for name, part in residuals.items()}
        blocks = [_logs(total, part.shape[1]) for part in squares.values() for total in [part.sum(axis=1)]]
        everywhere = np.sum(blocks, axis=0)
        own = [float(np.logaddexp(math.log(1.0 - CHANGED), math.log(CHANGED) + log_mean(row))) for row in everywhere]
        return cls(
            tuple(squares),
            tuple(part.size for part in squares.values()),
            tuple(float(part.sum()) for part in squares.values()),
            tuple(tuple(float(value) for value in part.sum(axis=0)) for part in blocks),
            float(sum(own)),
        )

    @property
    def ratios(self) -> dict[str, float]:
        """By group, how many times the honest deviation the residuals are, in the root of the mean of squares."""
        groups = zip(self.groups, self.squares, self.numbers, strict=True)
        return {name: math.sqrt(total / count) if count else 0.0 for name, total, count in groups}

    def log_against(self) -> float:
        """The logarithm of the e-value: the mean over scales, of each group alone, of all together, and by block."""
        if not self.groups:
            return 0.0
        together = [sum(column) for column in zip(*self.logs, strict=True)]
        scales = log_mean([value for row in (*self.logs, together) for value in row])
        return log_mean([scales, self.by_block])


def _squares(residuals: Reals, variances: Reals) -> Reals:
    """Squares in units of the variance; NaN, and what is not 0 without any variance, is as large as can be."""
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.square(residuals) / variances
    squares = np.where(residuals == 0.0, 0.0, squares)
    return np.minimum(np.where(np.isnan(squares), np.inf, squares), LARGEST**2)


def _logs(squares: Reals, numbers: int) -> Reals:
    """The logarithms of the e-values of blocks of `numbers` numbers, F64[blocks, scales]."""
    scales = np.array(SCALES)
    return np.asarray(0.5 * (1.0 - scales**-2) * squares[:, None] - numbers * np.log(scales))

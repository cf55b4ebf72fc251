"""E-values from token probabilities: likelihood ratios between the claimed sampler and alternatives to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tallystick.tolerances.evidence import log_mean


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
            tuple(float(each) for each in against.sum(axis=1)),
            tuple(float(each) for each in in_favour.sum(axis=1)),
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

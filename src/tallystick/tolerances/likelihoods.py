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

"""Evidence about a sampler from the probabilities of claimed tokens; it needs no seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tallystick.sampling.surprisal import log_ratios, surprisals
from tallystick.tolerances.likelihoods import Likelihoods, discount
from tallystick.tolerances.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.answers.sampler import ClaimedAnswer, SamplerEvidence

EXCLUDED: Final = ("temperature x0.7", "temperature x1.43")
"""The alternatives that likelihoods must exclude before an answer without a known seed is accepted."""


@dataclass(frozen=True)
class SurprisalSums:
    """Sums over tokens, in nats: surprisal, its expectation, its variance."""

    claimed: float = 0.0
    expected: float = 0.0
    variance: float = 0.0

    def __add__(self, other: SurprisalSums) -> SurprisalSums:
        return SurprisalSums(
            self.claimed + other.claimed, self.expected + other.expected, self.variance + other.variance
        )

    @property
    def standard_errors(self) -> float:
        """(surprisal − expectation) / √variance; 0 if the variance is 0."""
        return (self.claimed - self.expected) / math.sqrt(self.variance) if self.variance > 0 else 0.0


@dataclass(frozen=True)
class TokenLikelihoods:
    """Likelihood ratios of the tokens of answers, and their surprisal."""

    ratios: Likelihoods
    surprisal: SurprisalSums

    def __add__(self, other: TokenLikelihoods) -> TokenLikelihoods:
        return TokenLikelihoods(self.ratios + other.ratios, self.surprisal + other.surprisal)

    def finding(self, alpha: float) -> Finding:
        """Whether the tokens come from another distribution, at error `alpha` / 2."""
        sums, count = self.surprisal, self.ratios.tokens
        detail = (
            f"log e-value that tokens come from another distribution: mean surprisal {sums.claimed / count:.3f} nats, "
            f"expected {sums.expected / count:.3f}, {sums.standard_errors:+.1f} standard errors"
        )
        return Finding(self.ratios.log_against(), -math.log(alpha / 2), "surprisal", self.ratios.closest, detail)

    def tokens_missing(self, beta: float) -> int | None:
        """How many more tokens like these exclude other temperatures at error `beta`; None if no number does."""
        found = [self.ratios.tokens_missing(name, beta) for name in EXCLUDED]
        return None if None in found else max(each for each in found if each is not None)


def with_likelihoods(evidence: SamplerEvidence, view: ClaimedAnswer) -> SamplerEvidence:
    """The evidence, extended by surprisals and likelihood ratios of the answer's tokens."""
    seen = surprisals(view.logits, view.answer, view.sampler, view.histories, view.far)
    single = evidence.single or _impossible(np.flatnonzero(np.isinf(seen.least)), len(view.answer))
    ratios = log_ratios(view.logits, view.answer, view.sampler, view.histories, *_edges(view))
    against = np.stack([pair[0] - _cost(view) for pair in ratios.values()])
    in_favour = np.stack([pair[1] - _cost(view, name) for name, pair in ratios.items()])
    inside = np.isfinite(seen.claimed)
    sums = SurprisalSums(*(float(each[inside].sum()) for each in (seen.claimed, seen.expected, seen.variance)))
    found = TokenLikelihoods(Likelihoods.of(list(ratios), against, in_favour), sums)
    return replace(evidence, likelihoods=found, single=single)


def _edges(view: ClaimedAnswer) -> tuple[float, float]:
    """How far logits may differ at a filter's edge, and how often they differ more: where drift is known, one band."""
    sampler, rule = view.sampler, view.rule
    if not (sampler.top_k or sampler.top_p < 1.0 or sampler.min_p):
        return 0.0, 0.0
    return (view.far, rule.far_rate) if rule.rms is None else (view.band, rule.honest)


def _cost(view: ClaimedAnswer, alternative: str = "") -> float:
    """The most that honest drift adds to a token's log probability, in the mean over tokens if the drift is known."""
    rule = view.rule
    factor = float(alternative.rpartition("x")[2]) if alternative.startswith("temperature") else 1.0
    temperature = view.sampler.temperature * factor
    if rule.rms is not None:
        return discount(view.band, temperature, rule.rms)
    beyond = math.log(rule.honest) + discount(view.far, temperature)
    return float(np.logaddexp(discount(view.band, temperature), beyond))


def _impossible(places: npt.NDArray[np.int64], count: int) -> Finding:
    where = f"token {places[0]}" if len(places) else ""
    return Finding(len(places), 0, "sampler", where, f"of {count} tokens, those that the filters exclude")

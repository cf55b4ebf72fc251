"""Evidence about a sampler from probabilities of claimed tokens, and of alternatives under the same seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import Likelihoods, discount
from tallystick.verdicts.sampling.margin import log_ratios, stretch, surprisals
from tallystick.verdicts.sampling.rivals import Rivals, filter_rivals, rivals
from tallystick.verdicts.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.audits.answers.sampler import ClaimedAnswer, SamplerEvidence


# Evidence about a sampler from the probabilities of claimed tokens; it needs no seed.

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


# Evidence about other samplers under the same seed: which of two tokens the answer holds where it could be either.
#
# Drift turns the order of two tokens round with probability 1 / (1 + exp(lead / σ)) at most, where σ is the calibrated
# drift of a logit. A sampler at another temperature, or with another filter, has another lead, so each such token is a
# trial whose probability is known under both. Both directions are e-values: `against` bounds the stated sampler's
# probability, `in_favour` that of the other one.

FACTORS: Final = (0.7, 0.9, 0.97, 1.03, 1.1, 1.43)
STEP: Final = 0.05
"""The difference of top-p."""
FILTERS: Final = (
    "top-p lower by 0.05",
    "top-p higher by 0.05",
    "no top-p",
    "half the top-k",
    "twice the top-k",
    "no top-k",
    "half the min-p",
    "twice the min-p",
    "no min-p",
)
LIKELY_MAX: Final = 0.999
"""No wager is surer than this, so that one token that drift moved far costs 7 nats at most."""
Reals = npt.NDArray[np.float64]


def other_samplers(view: ClaimedAnswer, drift: float) -> Likelihoods:
    """The evidence for and against other temperatures and filters; `drift` is in logits, and the seed is known.

    The alternatives are the same for all samplers, so that evidence adds up; those that a sampler has not show nothing.
    """
    places = range(len(view.answer))
    drift *= stretch(view.sampler) if view.sampler.repetition_penalty != 1.0 else 1.0
    rows = (view.logits, view.sampler, places, view.histories)
    claimed, least = np.asarray(view.answer, np.int64), view.rule.far_rate
    found = {
        f"temperature x{factor:g}": wagers(each, claimed, drift, least)
        for factor, each in zip(FACTORS, rivals(*rows, FACTORS, view.band), strict=True)
    }
    filters = other_filters(view.sampler)
    found |= dict.fromkeys(FILTERS, (np.zeros(len(claimed)),) * 2)
    for name, each in zip(filters, filter_rivals(*rows, [*filters.values()], drift), strict=True):
        found[name] = wagers(each, claimed, drift, least)
    against, in_favour = zip(*found.values(), strict=True)
    return Likelihoods.of([*found], np.stack(against), np.stack(in_favour))


def other_filters(sampler: Sampler) -> dict[str, Sampler]:
    """Samplers that differ in one filter: those named in `FILTERS` that this one has."""
    top_p, top_k, min_p = sampler.top_p, sampler.top_k, sampler.min_p
    values: tuple[tuple[str, float, bool], ...] = (
        ("top_p", top_p - STEP, top_p > STEP),
        ("top_p", top_p + STEP, top_p + STEP < 1.0),
        ("top_p", 1.0, top_p < 1.0),
        ("top_k", max(1, top_k // 2), top_k > 1),
        ("top_k", 2 * top_k, top_k > 0),
        ("top_k", 0, top_k > 0),
        ("min_p", min_p / 2, min_p > 0.0),
        ("min_p", min(1.0, 2 * min_p), 0.0 < min_p < 1.0),
        ("min_p", 0.0, min_p > 0.0),
    )
    named = zip(FILTERS, values, strict=True)
    return {name: sampler.model_copy(update={key: value}) for name, (key, value, is_other) in named if is_other}


def wagers(pairs: Rivals, claimed: npt.NDArray[np.int64], drift: float | Reals, least: float) -> tuple[Reals, Reals]:
    """The logarithms of both factors, each F64[tokens]."""
    here, there = turned(pairs.lead / drift), turned(pairs.lead_there / drift)
    is_rival, is_own = claimed == pairs.rival, claimed == pairs.own
    against = wager(here, there, is_rival, least)
    in_favour = np.where(
        pairs.lead_there >= 0.0, wager(there, here, is_rival, least), wager(1.0 - there, 1.0 - here, is_own, least)
    )
    return against, in_favour


def wager(bound: Reals, likely: Reals, happened: Any, least: float) -> Reals:
    """The logarithm of a factor of mean at most 1 wherever something happens with probability `bound` at most.

    It wagers that the probability is `likely`; where that is no more than the bound, nothing is wagered.
    """
    bound, likely = np.maximum(bound, least), np.minimum(likely, LIKELY_MAX)
    is_on = likely > bound
    bound, likely = np.where(is_on, bound, 0.5), np.where(is_on, likely, 0.5)
    return np.where(happened, np.log(likely / bound), np.log1p(-likely) - np.log1p(-bound))


def turned(leads: Reals) -> Reals:
    """1 / (1 + exp(lead)), without overflow."""
    return 0.5 * (1.0 - np.tanh(0.5 * leads))

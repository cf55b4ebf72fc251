"""Evidence about a sampler from probabilities of claimed tokens, and from rivals under the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.audits.answers.limits import SamplerRule
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import Likelihoods, discount
from tallystick.verdicts.language_model import Rows
from tallystick.verdicts.sampling.fast_path import USUAL_REACH
from tallystick.verdicts.sampling.margin import log_ratios, stretch, surprisals
from tallystick.verdicts.sampling.rivals import Rivals, filter_rivals, rivals, rivals_of_models
from tallystick.verdicts.tolerance import Finding

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClaimedAnswer:
    """One answer with the claimed sampler and the verifier's logits and rule, which has a tie band."""

    logits: Rows
    prompt: Sequence[int]
    answer: Sequence[int]
    sampler: Sampler
    rule: SamplerRule

    @property
    def histories(self) -> Sequence[Any]:
        """The tokens before each answer token; empty without a repetition penalty."""
        if self.sampler.repetition_penalty == 1.0:
            return [()] * len(self.answer)
        tokens = np.asarray([*self.prompt, *self.answer], np.int64)
        return [tokens[: len(self.prompt) + place] for place in range(len(self.answer))]

    @property
    def band(self) -> float:
        """The tie band in logits."""
        assert self.rule.band is not None
        return self.rule.band


# Evidence about a sampler from the probabilities of claimed tokens; it needs no seed.

EXCLUDED: Final = ("temperature x0.7", "temperature x1.43")
"""The alternatives that likelihoods must exclude before an answer without a known seed is accepted."""


@dataclass(frozen=True)
class TokenLikelihoods:
    """Likelihood ratios of the tokens of answers, and sums over them in nats: surprisal, expectation, variance."""

    ratios: Likelihoods
    claimed: float = 0.0
    expected: float = 0.0
    variance: float = 0.0

    def __add__(self, other: TokenLikelihoods) -> TokenLikelihoods:
        return TokenLikelihoods(
            self.ratios + other.ratios,
            self.claimed + other.claimed,
            self.expected + other.expected,
            self.variance + other.variance,
        )

    @property
    def standard_errors(self) -> float:
        """(surprisal − expectation) / √variance; 0 if the variance is 0."""
        return (self.claimed - self.expected) / math.sqrt(self.variance) if self.variance > 0 else 0.0

    def finding(self, alpha: float) -> Finding:
        """Whether the tokens come from another distribution, at error `alpha` / 2."""
        count = self.ratios.tokens
        detail = (
            f"log e-value that tokens come from another distribution: mean surprisal {self.claimed / count:.3f} nats, "
            f"expected {self.expected / count:.3f}, {self.standard_errors:+.1f} standard errors"
        )
        return Finding(self.ratios.log_against(), -math.log(alpha / 2), "surprisal", self.ratios.closest, detail)

    def tokens_missing(self, beta: float) -> int | None:
        """How many more tokens like these exclude other temperatures at error `beta`; None if no number does."""
        missing = [self.ratios.tokens_missing(name, beta) for name in EXCLUDED]
        return None if None in missing else max(count for count in missing if count is not None)


def token_likelihoods(view: ClaimedAnswer) -> tuple[TokenLikelihoods, Finding]:
    """Surprisals and likelihood ratios of an answer's tokens, and the finding on those that filters exclude."""
    rule, sampler, rows = view.rule, view.sampler, (view.logits, view.answer, view.sampler, view.histories)
    seen = surprisals(*rows, rule.far_margin)
    # How far logits may differ at a filter's edge, and how often more: where drift is known, one band.
    edges = (rule.far_margin, rule.far_rate) if rule.rms is None else (view.band, rule.honest)
    is_filtering = sampler.top_k or sampler.top_p < 1.0 or sampler.min_p
    ratios = log_ratios(*rows, *(edges if is_filtering else (0.0, 0.0)))
    against = np.stack([pair[0] - _cost(view) for pair in ratios.values()])
    in_favour = np.stack([pair[1] - _cost(view, name) for name, pair in ratios.items()])
    inside = np.isfinite(seen.claimed)
    sums = (float(each[inside].sum()) for each in (seen.claimed, seen.expected, seen.variance))
    out = np.flatnonzero(np.isinf(seen.least))
    detail = f"of {len(view.answer)} tokens, those that the filters exclude"
    impossible = Finding(len(out), 0, "sampler", f"token {out[0]}" if len(out) else "", detail)
    return TokenLikelihoods(Likelihoods.of(list(ratios), against, in_favour), *sums), impossible


def _cost(view: ClaimedAnswer, alternative: str = "") -> float:
    """The most that honest drift adds to a token's log probability, in the mean over tokens if the drift is known."""
    rule = view.rule
    factor = float(alternative.rpartition("x")[2]) if alternative.startswith("temperature") else 1.0
    temperature = view.sampler.temperature * factor
    if rule.rms is not None:
        return discount(view.band, temperature, rule.rms)
    beyond = math.log(rule.honest) + discount(rule.far_margin, temperature)
    return float(np.logaddexp(discount(view.band, temperature), beyond))


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


def other_samplers(view: ClaimedAnswer, drift: float) -> Likelihoods:
    """The evidence for and against other temperatures and filters; `drift` is in logits, and the seed is known.

    The alternatives are the same for all samplers, so that evidence adds up; those that a sampler has not show nothing.
    """
    drift *= stretch(view.sampler)
    rows = (view.logits, view.sampler, range(len(view.answer)), view.histories)
    claimed, least = np.asarray(view.answer, np.int64), view.rule.far_rate
    logs = {
        f"temperature x{factor:g}": wagers(each, claimed, drift, least)
        for factor, each in zip(FACTORS, rivals(*rows, FACTORS, view.band), strict=True)
    }
    filters = other_filters(view.sampler)
    logs |= dict.fromkeys(FILTERS, (np.zeros(len(claimed)),) * 2)
    for name, each in zip(filters, filter_rivals(*rows, [*filters.values()], drift), strict=True):
        logs[name] = wagers(each, claimed, drift, least)
    against, in_favour = zip(*logs.values(), strict=True)
    return Likelihoods.of([*logs], np.stack(against), np.stack(in_favour))


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


# Evidence about weights in fewer bits under the same seed: which of two tokens an answer holds, token by token.
#
# A provider who chooses tokens with cheaper weights can state fingerprints of the promised ones for them. The tokens
# are still those of the cheaper model. The verifier runs it too: where it would choose another token than the promised
# model, the answer holds one of the two. Honest drift turns their order round with a probability that is known, so that
# each such token is a trial, and answers together tell. So are logits that something moved at random, such as a
# watermark: the closest rival is chosen from farther off than drift explains.

CHEAPER: Final = ("int8 by row", "int8 by row, steps in 16 bits", "int8 in groups of 64, steps in 16 bits")
"""The formats of weights that are tried; those with fewer bits choose other tokens so often that no trial is needed."""
COMPARED: Final = 32
"""The most logits of a row whose drift is measured: the largest of those that a sampler chooses from."""
LEAST_DRIFT: Final = 1e-6
MOVED: Final = (0.25, 0.5, 1.0)
"""How far something may move logits at random, as a watermark does: a sum that a token gets and its rival does not."""
CHOSEN: Final = 0.25
"""How likely the closest rival within that distance is chosen then: it gets the sum, and the other one does not."""
Passes = tuple[Rows, Rows, Mapping[str, Rows]]
"""Logits of the promised model in its precision, of it in F32, and of each cheaper one in F32."""


def cheaper_weights(view: ClaimedAnswer, passes: Passes) -> Likelihoods:
    """The evidence for and against each cheaper form of the model, and logits that were moved.

    How far the verifier's precision carries the logits of a row is the drift of an honest one there: a row in which the
    verifier rounds much is one for everybody.
    """
    own, true, cheaper = passes
    rule, sampler = view.rule, view.sampler
    drift = drift_of(own, true, 1.0 if sampler.is_greedy else sampler.temperature) * stretch(sampler)
    rows, claimed = (sampler, range(len(view.answer)), view.histories, view.band), np.asarray(view.answer, np.int64)
    found = {
        name: wagers(rivals_of_models(true, each, *rows), claimed, drift, rule.honest) for name, each in cheaper.items()
    }
    closest = rivals_of_models(true, true, *rows)
    honest = turned(closest.lead / drift)
    for moved in MOVED:
        likely = np.where(closest.lead < moved, CHOSEN, 0.0)
        against = wager(honest, likely, claimed == closest.rival, rule.honest)
        found[f"logits moved by {moved:g} at random"] = against, np.zeros(len(claimed))
    logs = np.array([*found.values()])
    return Likelihoods.of([*found], logs[:, 0], logs[:, 1])


def drift_of(own: Rows, true: Rows, temperature: float) -> Reals:
    """The deviation of own logits from those in F32 over the likely tokens of each row, F64[rows]."""
    order = np.argpartition(-true, COMPARED, axis=1)[:, :COMPARED]
    there = np.take_along_axis(true, order, axis=1).astype(np.float64)
    away = np.take_along_axis(own, order, axis=1) - there
    likely = there >= there.max(axis=1, keepdims=True) - temperature * USUAL_REACH
    count = likely.sum(axis=1)
    mean = (away * likely).sum(axis=1) / count
    squares = (np.square(away - mean[:, None]) * likely).sum(axis=1) / count
    return np.asarray(np.maximum(np.sqrt(squares), LEAST_DRIFT))

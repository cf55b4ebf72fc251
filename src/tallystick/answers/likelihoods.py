"""What the probabilities of claimed tokens say about a sampler: evidence that needs no seed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tallystick.answers.sampler import ClaimedAnswer, SamplerEvidence, SurprisalSums
from tallystick.sampling.surprisal import log_ratios, surprisals
from tallystick.tolerances.evidence import Likelihoods, discount
from tallystick.tolerances.tolerance import Finding


def with_likelihoods(evidence: SamplerEvidence, view: ClaimedAnswer) -> SamplerEvidence:
    """The evidence with what surprisals and likelihood ratios of the answer's tokens add to it."""
    seen = surprisals(view.logits, view.answer, view.sampler, view.histories, view.far)
    single = evidence.single or _impossible(np.flatnonzero(np.isinf(seen.least)), len(view.answer))
    ratios = log_ratios(view.logits, view.answer, view.sampler, view.histories, view.far, view.rule.far_rate)
    against = np.stack([pair[0] - _cost(view) for pair in ratios.values()])
    in_favour = np.stack([pair[1] - _cost(view, name) for name, pair in ratios.items()])
    inside = np.isfinite(seen.claimed)
    sums = SurprisalSums(*(float(each[inside].sum()) for each in (seen.claimed, seen.expected, seen.variance)))
    return replace(
        evidence, likelihoods=Likelihoods.of(list(ratios), against, in_favour), surprisal=sums, single=single
    )


def _cost(view: ClaimedAnswer, alternative: str = "") -> float:
    """What honest drift may add to a token's log probability: within the band, and with rate `honest` beyond it."""
    rule = view.rule
    factor = float(alternative.rpartition("x")[2]) if alternative.startswith("temperature") else 1.0
    temperature = view.sampler.temperature * factor
    beyond = math.log(rule.honest) + discount(view.far, temperature)
    return float(np.logaddexp(discount(view.band, temperature, rule.rms), beyond))


def _impossible(places: npt.NDArray[np.int64], count: int) -> Finding:
    where = f"token {places[0]}" if len(places) else ""
    return Finding(len(places), 0, "sampler", where, f"of {count} tokens, those that the filters exclude")

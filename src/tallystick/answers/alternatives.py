"""Evidence about the temperature from the order of two tokens: which of them the answer holds where it could be either.

Drift turns the order of two tokens round with probability 1 / (1 + exp(lead / σ)) at most, where σ is the calibrated
drift of a logit. A sampler at another temperature has another lead, so each such token is a trial whose probability is
known under both. Both directions are e-values: `against` bounds the stated sampler's probability, `in_favour` that of
the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.sampling.margin import stretch
from tallystick.sampling.rivals import Rivals, rivals
from tallystick.tolerances.likelihoods import Likelihoods

if TYPE_CHECKING:
    from tallystick.answers.sampler import ClaimedAnswer

FACTORS: Final = (0.7, 0.9, 0.97, 1.03, 1.1, 1.43)
LIKELY_MAX: Final = 0.999
"""No wager is surer than this, so that one token that drift moved far costs 7 nats at most."""
Reals = npt.NDArray[np.float64]


def temperature_evidence(view: ClaimedAnswer, drift: float) -> Likelihoods:
    """The evidence for and against other temperatures; `drift` is in logits, and the seed is known."""
    places = range(len(view.answer))
    drift *= stretch(view.sampler) if view.sampler.repetition_penalty != 1.0 else 1.0
    found = list(rivals(view.logits, view.sampler, places, view.histories, FACTORS, view.band))
    claimed, least = np.asarray(view.answer, np.int64), view.rule.far_rate
    names = [f"temperature x{factor:g}" for factor in FACTORS]
    against, in_favour = zip(*(_wagers(each, claimed, drift, least) for each in found), strict=True)
    return Likelihoods.of(names, np.stack(against), np.stack(in_favour))


def _wagers(pairs: Rivals, claimed: npt.NDArray[np.int64], drift: float, least: float) -> tuple[Reals, Reals]:
    """The logarithms of both factors, each F64[tokens]."""
    here, there = _turned(pairs.lead / drift), _turned(pairs.lead_there / drift)
    is_rival, is_own = claimed == pairs.rival, claimed == pairs.own
    against = _wager(here, there, is_rival, least)
    in_favour = np.where(
        pairs.lead_there >= 0.0, _wager(there, here, is_rival, least), _wager(1.0 - there, 1.0 - here, is_own, least)
    )
    return against, in_favour


def _wager(bound: Reals, likely: Reals, happened: Any, least: float) -> Reals:
    """The logarithm of a factor of mean at most 1 wherever something happens with probability `bound` at most.

    It wagers that the probability is `likely`; where that is no more than the bound, nothing is wagered.
    """
    bound, likely = np.maximum(bound, least), np.minimum(likely, LIKELY_MAX)
    is_on = likely > bound
    bound, likely = np.where(is_on, bound, 0.5), np.where(is_on, likely, 0.5)
    return np.where(happened, np.log(likely / bound), np.log1p(-likely) - np.log1p(-bound))


def _turned(leads: Reals) -> Reals:
    """1 / (1 + exp(lead)), without overflow."""
    return 0.5 * (1.0 - np.tanh(0.5 * leads))

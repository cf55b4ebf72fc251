"""Evidence about weights in fewer bits under the same seed: which of two tokens an answer holds, token by token.

A provider who chooses tokens with cheaper weights can state fingerprints of the promised ones for them. The tokens are
still those of the cheaper model. The verifier runs it too: where it would choose another token than the promised model,
the answer holds one of the two. Honest drift turns their order round with a probability that is known
(`audits.answers.likelihoods`), so that each such token is a trial, and answers together tell. So are logits that
something moved at random, such as a watermark: the closest rival is chosen from farther off than drift explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.audits.answers.likelihoods import turned, wager, wagers
from tallystick.audits.answers.sampler import SamplerEvidence, histories_of
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import Likelihoods
from tallystick.verdicts.language_model import Rows
from tallystick.verdicts.sampling.fast_path import USUAL_REACH
from tallystick.verdicts.sampling.margin import stretch
from tallystick.verdicts.sampling.rivals import rivals_of_models

CHEAPER: Final = ("int8 by row", "int8 by row, steps in 16 bits", "int8 in groups of 64, steps in 16 bits")
"""The formats of weights that are tried; those with fewer bits choose other tokens so often that no trial is needed."""
COMPARED: Final = 32
"""The most logits of a row whose drift is measured: the largest of those that a sampler chooses from."""
LEAST_DRIFT: Final = 1e-6
MOVED: Final = (0.25, 0.5, 1.0)
"""How far something may move logits at random, as a watermark does: a sum that a token gets and its rival does not."""
CHOSEN: Final = 0.25
"""How likely the closest rival within that distance is chosen then: it gets the sum, and the other one does not."""
Reals = npt.NDArray[np.float64]
Passes = tuple[Rows, Rows, Mapping[str, Rows]]
"""Logits of the promised model in its precision, of it in F32, and of each cheaper one in F32."""


def shows_weights(evidence: SamplerEvidence, sampler: Sampler) -> bool:
    """Whether tokens were drawn by scores under a known seed, with logits as the model gives them."""
    is_seeded = bool(evidence.trials.tokens) and (sampler.is_greedy or sampler.form == "gumbel")
    return is_seeded and not evidence.undecided and not sampler.adjustments and evidence.rule.rms is not None


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


def with_cheaper(
    evidence: SamplerEvidence, prompt: Sequence[int], answer: Sequence[int], sampler: Sampler, seen: Passes
) -> SamplerEvidence:
    """The evidence, extended by that for and against each cheaper form of the model, and against moved logits.

    How far the verifier's precision carries the logits of a row is the drift of an honest one there: a row in which the
    verifier rounds much is one for everybody.
    """
    own, true, cheaper = seen
    rule, histories = evidence.rule, histories_of(prompt, answer, sampler)
    assert rule.band is not None
    drift = drift_of(own, true, 1.0 if sampler.is_greedy else sampler.temperature)
    drift *= stretch(sampler) if sampler.repetition_penalty != 1.0 else 1.0
    claimed, places = np.asarray(answer, np.int64), range(len(answer))
    pairs = {
        name: rivals_of_models(true, each, sampler, places, histories, rule.band) for name, each in cheaper.items()
    }
    found = {name: wagers(each, claimed, drift, rule.honest) for name, each in pairs.items()}
    closest = rivals_of_models(true, true, sampler, places, histories, rule.band)
    honest = turned(closest.lead / drift)
    for moved in MOVED:
        likely = np.where(closest.lead < moved, CHOSEN, 0.0)
        against = wager(honest, likely, claimed == closest.rival, rule.honest)
        found[f"logits moved by {moved:g} at random"] = against, np.zeros(len(claimed))
    logs = np.array([*found.values()])
    return replace(evidence, cheaper=Likelihoods.of([*found], logs[:, 0], logs[:, 1]))

"""Tokens of cheaper weights under fingerprints of the promised ones: seen over answers, and honest ones are not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tallystick.audits.answers.likelihoods import drift_of
from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.sampler import SamplerEvidence, combine, judge_sampler, shows_weights, with_cheaper
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.sampling.choice import choose

ROWS, WIDTH, DRIFT, COARSE = 128, 64, 0.05, 0.15
RULE = SamplerRule(band=0.376, rms=0.0944, mismatches=0.0429, seed="customer")


def answer(seed: int, is_coarse: bool, sampler: Sampler) -> SamplerEvidence:
    """The evidence of one answer, drawn from promised or cheaper logits on a stack that drifts as the verifier's."""
    rng = np.random.default_rng(seed)
    true = (2.0 * rng.standard_normal((ROWS, WIDTH))).astype(np.float32)
    coarse = (true + COARSE * rng.standard_normal(true.shape)).astype(np.float32)
    own, theirs = (DRIFT * rng.standard_normal(true.shape).astype(np.float32) for _ in range(2))
    served = (coarse if is_coarse else true) + theirs
    tokens = tuple(choose(served, sampler, range(ROWS), [()] * ROWS))
    found = judge_sampler(true + own, (1,), tokens, sampler, RULE)
    assert shows_weights(found, sampler)
    return with_cheaper(found, (1,), tokens, sampler, (true + own, true, {"int8 by row": coarse}))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_of_cheaper_weights_are_seen_and_honest_ones_are_not(temperature: float) -> None:
    sampler = Sampler(temperature=temperature, seed=5)
    honest, cheat = (combine(answer(seed, coarse, sampler) for seed in range(8)) for coarse in (False, True))
    assert honest.decision == "accepted"
    assert honest.cheaper.log_against() < 0.0
    assert cheat.cheaper.log_against() > -math.log(RULE.alpha)
    assert cheat.decision == "rejected"


def test_honest_answers_are_not_accused() -> None:
    sampler = Sampler(temperature=1.0, seed=5)
    logs = [answer(seed, False, sampler).cheaper.log_against() for seed in range(100, 160)]
    assert np.mean(np.exp(logs)) <= 1.0
    assert max(logs) < -math.log(RULE.alpha)


def test_a_watermark_is_seen_over_answers() -> None:
    sampler, logs = Sampler(temperature=1.0, seed=5), []
    for is_marked in (False, True):
        found = []
        for seed in range(8):
            rng = np.random.default_rng(seed)
            true = (2.0 * rng.standard_normal((ROWS, WIDTH))).astype(np.float32)
            own, theirs = (DRIFT * rng.standard_normal(true.shape).astype(np.float32) for _ in range(2))
            served = true + theirs + 0.5 * is_marked * (rng.random(true.shape) < 0.5).astype(np.float32)
            tokens = tuple(choose(served, sampler, range(ROWS), [()] * ROWS))
            judged = judge_sampler(true + own, (1,), tokens, sampler, RULE)
            found.append(with_cheaper(judged, (1,), tokens, sampler, (true + own, true, {})))
        logs.append(combine(found).cheaper.log_against())
    assert logs[0] < 0.0
    assert logs[1] > -math.log(RULE.alpha)


def test_the_drift_is_that_of_the_likely_tokens() -> None:
    true = np.zeros((1, 64), np.float32)
    true[0, 32:] = -50.0
    own = true.copy()
    own[0, :32:2] += 0.1
    own[0, 32:] += np.linspace(-9, 9, 32, dtype=np.float32)
    assert drift_of(own, true, 1.0) == pytest.approx([0.05])


def test_tokens_without_a_seed_show_no_weights() -> None:
    sampler = Sampler(temperature=1.0, seed=5)
    found = answer(1, False, sampler)
    assert shows_weights(found, sampler)
    assert not shows_weights(SamplerEvidence(RULE), sampler)

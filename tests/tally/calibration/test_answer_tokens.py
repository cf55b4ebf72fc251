"""Limits of tokens lie above what honest answers showed, and grow with the drift between stacks."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from tallystick.audits.answers.limits import MeasuredModels, SamplerRule, TokenLimits
from tallystick.audits.answers.sampler import judge_sampler
from tallystick.formats.receipt import Sampler
from tallystick.tally.calibration.answer_limits import SeenTokens, observe, token_limits, upper
from tallystick.verdicts.sampling.choice import choose_one

MODELS = MeasuredModels(dtype="BF16", layers=4, width=32, models=("drawn",), answers=30)
TOKENS, VOCABULARY, LARGEST = 60, 256, 64


def logits_of(rng: np.random.Generator, drift: float) -> tuple[np.ndarray, np.ndarray]:
    """A verifier's logits, and a provider's, which differ by normal noise of size `drift`."""
    own = (3.0 * rng.standard_normal((TOKENS, VOCABULARY))).astype(np.float32)
    return own, (own + drift * rng.standard_normal(own.shape)).astype(np.float32)


def answer_of(theirs: np.ndarray, sampler: Sampler) -> list[int]:
    return [choose_one(row, sampler, place, ()) for place, row in enumerate(theirs)]


@cache
def seen_of(seed: int, drift: float) -> SeenTokens:
    sampler = Sampler(temperature=(0.0, 0.7, 1.0)[seed % 3], seed=seed)
    own, theirs = logits_of(np.random.default_rng(seed), drift)
    entries = np.argsort(-theirs, axis=1)[:, :LARGEST]
    claimed = np.take_along_axis(theirs, entries, 1)
    return observe(own, [1], answer_of(theirs, sampler), sampler, claimed, entries)


def limits_of(drift: float) -> TokenLimits:
    return token_limits([seen_of(seed, drift) for seed in range(30)], MODELS)


def test_limits_lie_above_what_was_seen_and_near_it() -> None:
    found = limits_of(0.1)
    seen = np.concatenate([seen_of(seed, 0.1).margins for seed in range(30)])
    assert 0.125 * 0.95 < found.rms < 0.25
    assert (seen > 0.0).mean() < found.mismatches < 6 * (seen > 0.0).mean()
    assert (seen > found.band).mean() <= 1e-3
    assert found.largest == seen.max()
    assert [each.tokens for each in found.bins] == [30 * TOKENS] * 5
    assert found.bins[0].beyond == (seen > 0.0).sum()


def test_limits_grow_with_the_drift_and_have_a_least() -> None:
    bands = [limits_of(drift).band for drift in (0.0, 0.02, 0.2)]
    assert bands == sorted(bands)
    assert bands[0] > 0.0
    assert bands[2] > 5 * bands[1]


@pytest.mark.parametrize("drift", [0.02, 0.1])
def test_honest_answers_that_set_no_limit_stay_within_them(drift: float) -> None:
    found = limits_of(drift)
    rule = SamplerRule(band=found.band, rms=found.rms, mismatches=found.mismatches, seed="customer")
    for seed in range(100, 108):
        sampler = Sampler(temperature=0.9, seed=seed)
        own, theirs = logits_of(np.random.default_rng(seed), drift)
        honest = judge_sampler(own, [1], answer_of(theirs, sampler), sampler, rule)
        assert honest.decision != "rejected"
        hot = answer_of(theirs, sampler.model_copy(update={"temperature": 1.3}))
        assert judge_sampler(own, [1], hot, sampler, rule).decision == "rejected"


def test_an_upper_bound_counts_trials_that_vary_together_for_less() -> None:
    assert upper(0, 1000) == pytest.approx(1 - 0.01 ** (1 / 1000), rel=1e-3)
    assert upper(10, 1000) < upper(10, 1000, 4.0) < 4 * upper(10, 1000)
    assert math.isclose(upper(5, 5), 1.0)

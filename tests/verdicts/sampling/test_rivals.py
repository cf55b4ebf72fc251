"""The two tokens whose order another temperature turns round are those by definition, whatever was claimed."""

from __future__ import annotations

import numpy as np
import pytest

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.sampling.choice import choose
from tallystick.verdicts.sampling.rivals import Rivals, rivals
from tests.support.sampler_rows import kept

ROWS, VOCABULARY = 200, 64
SHARP = 2.0


def logits_of(seed: int = 1) -> np.ndarray:
    return (SHARP * np.random.default_rng(seed).standard_normal((ROWS, VOCABULARY))).astype(np.float32)


def pairs_of(logits: np.ndarray, sampler: Sampler, factor: float, spread: float = 0.1) -> Rivals:
    return next(rivals(logits, sampler, range(ROWS), [()] * ROWS, (factor,), spread))


@pytest.mark.parametrize("factor", [0.7, 1.43])
def test_without_filters_the_own_token_is_the_choice_and_the_rival_that_of_the_other_temperature(factor: float) -> None:
    logits, sampler = logits_of(), Sampler(temperature=0.9, seed=3)
    found = pairs_of(logits, sampler, factor)
    other = sampler.model_copy(update={"temperature": 0.9 * factor})
    here, there = (choose(logits, each, range(ROWS), [()] * ROWS) for each in (sampler, other))
    assert (found.own == here).mean() > 0.95, "unlikely tokens are no contenders"
    differs = (found.own == here) & (here != there)
    assert 20 < differs.sum() < ROWS
    assert (found.rival == there)[differs].mean() > 0.9
    assert (found.lead >= 0.0).all()
    assert ((found.lead_there < 0.0) == (found.rival == there))[found.own == here].mean() > 0.95


def test_only_tokens_that_the_filters_of_both_temperatures_keep_are_compared() -> None:
    logits, sampler = logits_of(), Sampler(temperature=0.9, top_p=0.8, top_k=20, seed=3)
    for factor in (0.7, 1.43):
        found = pairs_of(logits, sampler, factor)
        is_pair = np.isfinite(found.lead)
        assert 20 < is_pair.sum() < ROWS
        for each in (sampler, sampler.model_copy(update={"temperature": 0.9 * factor})):
            stays = kept(logits, each, range(ROWS), [()] * ROWS)
            for tokens in (found.own, found.rival):
                assert stays[np.arange(ROWS), tokens][is_pair].all()


def test_a_row_with_one_token_left_has_no_pair() -> None:
    logits = np.where(np.arange(VOCABULARY) == 7, 0.0, -np.inf).astype(np.float32)[None]
    found = next(rivals(logits, Sampler(seed=1), [0], [()], (0.7,), 0.1))
    assert np.isinf(found.lead).all()
    assert np.isinf(found.lead_there).all()

"""Another temperature is told from the stated one by the tokens that drift could not have turned round."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.sampler import SamplerEvidence, combine, judge_sampler
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import clopper_pearson
from tallystick.verdicts.sampling.choice import choose_one

ROWS, VOCABULARY, RMS = 240, 48, 0.1
RULE = SamplerRule(band=0.4, rms=RMS, mismatches=0.1, seed="customer")


def logistic_drift(rng: np.random.Generator, scale: float) -> np.ndarray:
    """Logits' drift whose differences are logistic with this scale: the largest that the rule allows for."""
    return np.asarray(scale * rng.gumbel(size=(ROWS, VOCABULARY)))


def evidence(
    seed: int, factor: float = 1.0, scale: float = RMS, served: dict[str, float] | None = None, **settings: float
) -> SamplerEvidence:
    """The evidence on 240 tokens that a provider draws at `factor` times the stated temperature, and as `served`."""
    rng = np.random.default_rng(seed)
    own = (2.0 * rng.standard_normal((ROWS, VOCABULARY))).astype(np.float32)
    theirs = (own + logistic_drift(rng, scale)).astype(np.float32)
    stated = Sampler(temperature=0.9, seed=seed, **settings)
    drawn = stated.model_copy(update={"temperature": 0.9 * factor, **(served or {})})
    answer: list[int] = []
    for place, row in enumerate(theirs):
        answer.append(choose_one(row, drawn, place, [1, *answer]))
    return judge_sampler(own, [1], answer, stated, RULE)


def test_an_honest_answer_excludes_temperatures_far_away_and_names_those_near() -> None:
    found = evidence(1, scale=0.06)
    assert found.decision == "accepted"
    told, replaced = found.not_excluded
    _, _, named = told.partition(" stated sampler from ")
    assert set(re.findall(r"([^(,]+) \(", named.replace("), ", ","))) == {"temperature x0.97", "temperature x1.03"}
    assert told.startswith("sampler: 240 tokens cannot tell the stated sampler from temperature x0.97 (about ")
    assert replaced.startswith("sampler: a token replaced by one within 1.78 logits is not seen; ")


@pytest.mark.parametrize("factor", [0.7, 0.9, 1.1, 1.43])
def test_another_temperature_under_the_same_seed_is_rejected(factor: float) -> None:
    found = combine([evidence(seed, factor) for seed in (1, 2)])
    assert found.decision == "rejected"
    assert found.others.log_against() > -math.log(RULE.alpha / 2)


def test_a_temperature_three_per_cent_off_is_rejected_over_many_answers_and_not_in_one() -> None:
    assert evidence(1, 0.97).decision != "rejected"
    assert combine([evidence(seed, 0.94) for seed in range(12)]).decision == "rejected"


@pytest.mark.parametrize(
    ("stated", "served", "name"),
    [
        ({"top_p": 0.9}, {"top_p": 0.95}, "top-p higher by 0.05"),
        ({"top_p": 0.9}, {"top_p": 0.85}, "top-p lower by 0.05"),
        ({"top_p": 0.9}, {"top_p": 1.0}, "no top-p"),
        ({}, {"top_p": 0.95}, "top-p lower by 0.05"),
        ({"top_k": 6}, {"top_k": 3}, "half the top-k"),
        ({"top_k": 3}, {"top_k": 6}, "twice the top-k"),
        ({"min_p": 0.1}, {"min_p": 0.2}, "twice the min-p"),
        ({"min_p": 0.2}, {"min_p": 0.1}, "half the min-p"),
    ],
)
def test_another_filter_under_the_same_seed_is_found_and_its_honest_twin_excludes_it(
    stated: dict[str, float], served: dict[str, float], name: str
) -> None:
    cheats = [evidence(seed, scale=0.06, served=served, **stated) for seed in (1, 2)]
    honest = combine([evidence(seed, scale=0.06, **stated) for seed in (1, 2)])
    place = honest.others.names.index(name)
    assert combine(cheats).decision == "rejected"
    assert combine(cheats).others.against[place] > -math.log(RULE.alpha / 2)
    assert honest.decision == "accepted"
    assert honest.others.tokens_missing(name, RULE.beta) == 0


def test_a_filter_that_would_have_chosen_the_same_tokens_is_not_named() -> None:
    rows = np.where(np.arange(8) == np.arange(60)[:, None] % 8, 30.0, 0.0).astype(np.float32)
    found = judge_sampler(rows, [1], rows.argmax(axis=1).tolist(), Sampler(temperature=0.9, top_p=0.9, seed=1), RULE)
    assert found.decision == "accepted"
    assert not any("top-p" in line for line in found.not_excluded)


@pytest.mark.parametrize(
    ("scale", "settings"),
    [(RMS, {}), (RMS, {"top_p": 0.9}), (RMS, {"repetition_penalty": 1.2}), (0.02, {})],
)
def test_honest_answers_rarely_have_a_large_e_value(scale: float, settings: dict[str, float]) -> None:
    high = sum(evidence(seed, scale=scale, **settings).others.log_against() > math.log(20) for seed in range(24))
    assert clopper_pearson(high, 24, 0.999)[0] <= 0.05


@pytest.mark.parametrize("rule", [SamplerRule(band=0.4), RULE.model_copy(update={"seed": "unknown"})])
def test_without_a_calibrated_drift_or_a_seed_no_orders_are_judged(rule: SamplerRule) -> None:
    found = judge_sampler(np.zeros((2, 8), np.float32), [1], [2, 3], Sampler(temperature=0.9), rule)
    assert not found.others.tokens
    assert not found.not_excluded

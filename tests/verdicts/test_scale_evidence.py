"""Numbers that vary no more than rounding are rarely evidence; larger ones are, and the evidence adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tallystick.verdicts.evidence import SCALES, ScaleTrials

ALPHA = 1e-2


def trials(size: float, seed: int, blocks: int = 4, numbers: int = 14) -> ScaleTrials:
    """Trials of normal numbers of this size under an honest variance of 1."""
    rng = np.random.default_rng(seed)
    drawn = {name: size * rng.standard_normal((blocks, numbers)) for name in ("final", "logits")}
    return ScaleTrials.of(drawn, {name: np.ones_like(each) for name, each in drawn.items()})


def test_the_e_value_of_honest_numbers_has_a_mean_of_one_at_most() -> None:
    """By Ville's inequality it then ever reaches 1 / alpha with probability alpha at most."""
    found = [math.exp(trials(1.0, seed, blocks=1, numbers=1).log_against()) for seed in range(4000)]
    assert np.mean(found) < 1.1


def test_honest_evidence_that_adds_up_is_rarely_against_the_provider() -> None:
    beyond = 0
    for seed in range(200):
        total, reached = ScaleTrials(), False
        for answer in range(8):
            total += trials(1.0, 8 * seed + answer)
            reached |= total.log_against() > -math.log(ALPHA)
        beyond += reached
    assert beyond <= 3


def test_signs_of_a_projection_are_as_good_as_normal_numbers() -> None:
    """A number of a fingerprint is a sum of an error under random signs, for which the bound is exact."""
    rng, error = np.random.default_rng(5), np.linspace(0.1, 3.0, 12)
    drawn = (rng.choice((-1.0, 1.0), (5000, 12)) @ error)[:, None]
    found = [ScaleTrials.of({"a": each[None]}, {"a": np.full((1, 1), error @ error)}) for each in drawn]
    for scale in range(len(SCALES)):
        assert np.mean([math.exp(each.logs[0][scale]) for each in found]) < 1.05


@pytest.mark.parametrize(("size", "answers"), [(2.0, 1), (1.5, 4), (1.25, 16)])
def test_larger_numbers_are_seen_in_as_many_answers_as_it_takes(size: float, answers: int) -> None:
    total = sum((trials(size, seed) for seed in range(answers)), ScaleTrials())
    assert total.log_against() > -math.log(1e-6)


def test_a_change_of_one_block_is_seen_among_many_that_agree() -> None:
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal((32, 14))
    drawn[3] *= 6.0
    found = ScaleTrials.of({"a": drawn}, {"a": np.ones_like(drawn)})
    assert found.log_against() > 20.0
    assert found.by_block > max(found.logs[0])


def test_what_is_no_number_speaks_against_the_provider_and_zero_never_does() -> None:
    one = np.ones((1, 7))
    assert ScaleTrials.of({"a": one * np.nan}, {"a": one}).log_against() > 1e6
    assert ScaleTrials.of({"a": one}, {"a": one * 0.0}).log_against() > 1e6
    assert ScaleTrials.of({"a": one * 0.0}, {"a": one * 0.0}).log_against() < 0.0


def test_evidence_adds_in_any_order_and_nothing_is_neutral() -> None:
    a, b = trials(1.0, 1), trials(1.2, 2)
    assert ScaleTrials() + a == a + ScaleTrials() == a
    assert (a + b).log_against() == pytest.approx((b + a).log_against())
    assert (a + b).numbers == (112, 112)
    assert (a + b).ratios.keys() == {"final", "logits"}
    assert ScaleTrials().log_against() == 0.0

"""Evidence is honest about honest streams, and grows on dishonest ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tallystick.verdicts.evidence import (
    SHARES,
    Likelihoods,
    MarginRates,
    MismatchTest,
    Trials,
    clopper_pearson,
    discount,
    log_mean,
)

TEST = MismatchTest(honest=0.02, dishonest=0.1)
STREAMS, TOKENS = 2000, 400
RATES = MarginRates(tuple((m, 0.04 * math.exp(-m)) for m in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)))
"""Honest margins: 4 % of tokens, exponential with mean 1."""


def streams(rate: float, seed: int, count: int = STREAMS, tokens: int = TOKENS) -> np.ndarray:
    """The number of mismatches after each token of each stream, I64 [streams, tokens]."""
    return np.cumsum(np.random.default_rng(seed).random((count, tokens)) < rate, axis=1)


def margins(rate: float, seed: int, scale: float = 1.0, count: int = STREAMS) -> np.ndarray:
    """Margins F64 [streams, tokens]: 0, or with probability `rate` exponential with mean `scale`."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random((count, TOKENS)) < rate, scale * rng.exponential(size=(count, TOKENS)), 0.0)


def ever_rejected(seen: np.ndarray, alpha: float) -> int:
    """How many streams of margins reach 1/α after any of their tokens."""
    gains = np.log1p(np.array(SHARES)[:, None, None] * (RATES.wagers(seen) - 1.0)).cumsum(axis=2)
    return int((np.log(np.exp(gains).mean(axis=0)) >= -math.log(alpha)).any(axis=1).sum())


@pytest.mark.parametrize(("alpha", "rate"), [(0.05, 0.04), (0.05, 0.01), (0.01, 0.04)])
def test_an_honest_stream_watched_at_every_token_is_accused_with_probability_alpha_at_most(
    alpha: float, rate: float
) -> None:
    accused = ever_rejected(margins(rate, seed=3), alpha)
    assert clopper_pearson(accused, STREAMS, 0.999)[0] <= alpha, f"{accused} of {STREAMS}"


@pytest.mark.parametrize(("rate", "scale"), [(0.04, 12.0), (0.4, 1.0), (0.02, 16.0)])
def test_more_or_larger_margins_than_honest_ones_are_rejected(rate: float, scale: float) -> None:
    assert ever_rejected(margins(rate, seed=4, scale=scale, count=200), 1e-3) >= 196


def test_a_dishonest_stream_is_accepted_with_probability_beta_at_most() -> None:
    beta, mismatches = 0.05, streams(TEST.dishonest, seed=5)
    tokens = np.arange(1, TOKENS + 1)
    table = np.vectorize(lambda n, k: TEST.in_favour(Trials(n, k)))(tokens, np.minimum(mismatches, 59))
    accepted = int((table >= -math.log(beta)).any(axis=1).sum())
    assert accepted > 0
    assert clopper_pearson(accepted, STREAMS, 0.999)[0] <= beta


@pytest.mark.parametrize(("margin", "rate"), [(0.0, 1.0), (1.0, 0.04 / math.e), (3.0, 0.04 * math.exp(-3.0))])
def test_the_rate_of_a_margin_is_log_linear_between_the_points_and_one_at_zero(margin: float, rate: float) -> None:
    assert math.isclose(RATES.rate(margin), rate)
    assert math.isclose(RATES.rate(99.0), 0.04 * math.exp(-16.0))


def test_a_wager_has_mean_one_at_most_wherever_margins_reach_the_points_no_more_often_than_stated() -> None:
    points, rates = np.array(RATES.points).T
    assert RATES.wagers(np.array([0.0])) == [0.0]
    grades = RATES.wagers(np.array([1e-12, *points[1:], math.inf]))
    assert (np.diff(grades)[:-1] > 0).all()
    for shrink in (1.0, 0.5):
        reached = rates * shrink
        assert (reached - np.append(reached[1:], 0.0)) @ grades[:-1] <= 1.0 + 1e-12
    assert (rates * 1.1 - np.append(rates[1:] * 1.1, 0.0)) @ grades[:-1] > 1.0


def test_the_trials_of_tokens_are_the_sum_of_those_of_each() -> None:
    seen = margins(0.1, seed=2, count=1)[0]
    parts = [Trials.of(part, 3.0, RATES) for part in np.split(seen, 8)]
    whole = Trials.of(seen, 3.0, RATES)
    assert (whole.tokens, whole.mismatches) == (TOKENS, int((seen > 3.0).sum()))
    assert sum(parts, Trials()).log_against() == pytest.approx(whole.log_against())


def test_the_factor_for_honesty_has_mean_one_at_most_under_every_dishonest_rate() -> None:
    hit, miss = math.exp(TEST.in_favour(Trials(1, 1))), math.exp(TEST.in_favour(Trials(1, 0)))
    for rate in np.linspace(TEST.dishonest, 1.0, 21):
        assert rate * hit + (1 - rate) * miss <= 1 + 1e-12


def test_the_tokens_missing_are_just_enough() -> None:
    beta, seen = 0.01, Trials(10, 1)
    missing = TEST.tokens_missing(seen, beta)
    assert TEST.in_favour(seen + Trials(missing - 1)) < -math.log(beta) <= TEST.in_favour(seen + Trials(missing))
    assert TEST.tokens_missing(Trials(1000), beta) == 0


def test_evidence_adds_over_receipts() -> None:
    assert Trials(3, 1) + Trials(4) == Trials(7, 1)
    one = Likelihoods.of(["a", "b"], np.array([[1.0, 2.0], [0.0, -1.0]]), np.zeros((2, 2)))
    assert one + one == Likelihoods(("a", "b"), (6.0, -2.0), (0.0, 0.0), 4)
    assert one + Likelihoods() == one == Likelihoods() + one
    assert one.log_against() == pytest.approx(math.log((math.exp(3) + math.exp(-1)) / 2))
    assert Likelihoods().log_against() == 0.0
    with pytest.raises(AssertionError):
        one + Likelihoods(("c",), (0.0,), (0.0,), 1)


def tempered(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((logits - logits.max(axis=-1, keepdims=True)) / temperature)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def ratios(logits: np.ndarray, drawn: np.ndarray, spread: float) -> Likelihoods:
    """Temperatures 0.7, 1.3 and 1.6 against 1.0, for tokens drawn from (perhaps other) logits."""
    rows, temperatures = np.arange(drawn.size), (0.7, 1.3, 1.6)
    honest = np.log(tempered(logits, 1.0)[rows, drawn])
    others = np.stack([np.log(tempered(logits, t)[rows, drawn]) for t in temperatures])
    against = others - honest - discount(spread, 1.0)
    in_favour = honest - others - np.array([discount(spread, t) for t in temperatures])[:, None]
    return Likelihoods.of([str(t) for t in temperatures], against, in_favour)


def draw(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.asarray((np.cumsum(p, axis=-1) < rng.random((len(p), 1))).sum(axis=-1).clip(max=p.shape[-1] - 1))


def test_tokens_of_drifting_logits_are_accused_with_probability_alpha_at_most_and_without_the_discount_more_often() -> (
    None
):
    rng, spread, alpha = np.random.default_rng(6), 1.0, 0.05
    logits = 2.0 * rng.standard_normal((1, 32))
    worst = logits + np.where(logits < np.log(np.exp(logits).mean()), spread / 2, -spread / 2)  # flatter than claimed
    accused, naive = 0, 0
    for _ in range(400):
        drawn = draw(np.repeat(tempered(worst, 1.0), 200, axis=0), rng)
        seen = np.repeat(logits, 200, axis=0)
        accused += ratios(seen, drawn, spread).log_against() >= -math.log(alpha)
        naive += ratios(seen, drawn, 0.0).log_against() >= -math.log(alpha)
    assert clopper_pearson(accused, 400, 0.999)[0] <= alpha
    assert naive > 300


def test_another_temperature_is_rejected_and_the_claimed_one_shown() -> None:
    rng = np.random.default_rng(7)
    logits = 3.0 * rng.standard_normal((600, 64))
    honest = ratios(logits, draw(tempered(logits, 1.0), rng), 0.002)
    assert honest.log_against() < math.log(1e3)
    assert honest.tokens_missing("1.6", 0.01) == 0
    hotter = ratios(logits, draw(tempered(logits, 1.6), rng), 0.002)
    assert hotter.log_against() > math.log(1e6)
    assert hotter.tokens_missing("1.6", 0.01) is None


def test_tokens_missing_of_a_likelihood_follow_the_rate_so_far() -> None:
    seen = Likelihoods(("a",), (0.0,), (1.0,), 10)
    assert seen.tokens_missing("a", math.exp(-3.0)) == 20
    assert Likelihoods(("a",), (0.0,), (-1.0,), 10).tokens_missing("a", 0.01) is None


def test_the_discount_is_the_smaller_of_the_worst_case_and_the_random_one() -> None:
    assert discount(0.5, 0.5) == 1.0
    assert discount(0.5, 0.5, rms=0.05) == pytest.approx(0.005)
    assert discount(0.001, 1.0, rms=10.0) == 0.001


def test_random_drift_keeps_the_mean_of_a_factor_below_one_after_its_discount() -> None:
    rng, rms = np.random.default_rng(8), 0.5
    logits = 2.0 * rng.standard_normal(16)
    p, q = tempered(logits, 1.0), tempered(logits, 1.6)
    means = [float((tempered(logits + rms * rng.standard_normal(16), 1.0) * q / p).sum()) for _ in range(4000)]
    assert np.mean(means) + 4 * np.std(means) / 63 > 1.0
    assert np.mean(means) * math.exp(-discount(9.0, 1.0, rms)) <= 1.0


def test_the_mean_of_logarithms_survives_extremes() -> None:
    assert log_mean([-1e9, 1e9]) == pytest.approx(1e9)
    assert log_mean([-math.inf, 0.0]) == pytest.approx(-math.log(2))
    assert log_mean([-math.inf, -math.inf]) == -math.inf

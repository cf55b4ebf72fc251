import numpy as np
import pytest

from research.agreement import agreement_probability, mismatch_rate
from tallystick.verdicts.buckets import count_elements
from tallystick.verdicts.evidence import at_least, clopper_pearson


@pytest.mark.parametrize(
    ("mode", "drift", "rate"),
    [("fp16_rne", "gaussian", 1176), ("fp16_rne", "constant", 1475), ("grid", "gaussian", 12_700)],
)
def test_the_rates_are_the_published_ones(mode, drift, rate):
    assert mismatch_rate(1e-9, mode, drift=drift) / 1e-9 == pytest.approx(rate, rel=5e-3)


@pytest.mark.parametrize(
    ("product", "probability"), [(1e-6, 0.999), (1e-5, 0.988), (1e-4, 0.889), (1e-3, 0.308), (1e-2, 7.8e-6)]
)
def test_agreement_depends_on_drift_times_count_alone(product, probability):
    for count in (10**4, 10**9):
        assert agreement_probability(product / count, count) == pytest.approx(probability, rel=0.02)


def test_both_buckets_agree_less_often_than_either():
    one, two = (agreement_probability(1e-8, 10**4, mode) for mode in ("fp16_rne", "grid"))
    assert agreement_probability(1e-8, 10**4, "both") == pytest.approx(one * two)


@pytest.mark.parametrize("mode", ["fp16_rne", "grid"])
@pytest.mark.parametrize("margin", [0.0, 1e-3, 1e-2])
def test_the_rate_is_the_measured_one(mode, margin):
    rng = np.random.default_rng(7)
    relative = 1e-5 if mode == "fp16_rne" else 1e-6
    weights = rng.normal(0, 0.02, 400_000)
    drifted = weights * (1 + relative * rng.normal(size=weights.size))
    measured = mismatches_left(weights, drifted, mode, margin)
    expected = mismatch_rate(relative, mode, hint_margin=margin) * weights.size
    assert abs(measured - expected) < 5 * np.sqrt(expected) + 3


def mismatches_left(weights, drifted, mode, margin):
    from tallystick.core.tensors import Tensor
    from tallystick.verdicts.buckets import Bucket

    bucket = Bucket(mode, 1e-6, margin)
    hints = bucket.hints(weights)[""] if margin else None
    return int((bucket.codes(Tensor.of(weights)) != bucket.codes(Tensor.of(drifted), hints)).sum())


def test_counting_sees_what_moved_to_another_bucket():
    values, ones = np.linspace(0.1, 1, 100), np.ones(4)
    assert count_elements(values, values * 1.01) == 100
    assert count_elements(ones, ones + 1e-6) == count_elements(values, values) == 0


def test_an_element_without_a_bucket_counts_unless_it_is_equal():
    left = np.array([np.nan, np.inf, 7e4, 7e4, 1.0])
    right = np.array([np.nan, np.inf, 7e4, 9e4, np.inf])
    assert count_elements(left, right) == 3


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 1000, 0.0, 0.00368),
        (300, 300, 0.98778, 1.0),
        (299, 300, 0.98156, 0.99992),
        (1, 2, 0.01258, 0.98742),
    ],
)
def test_intervals_are_the_published_ones(successes, trials, low, high):
    assert clopper_pearson(successes, trials) == pytest.approx((low, high), abs=2e-5)


def test_tails_of_the_binomial_add_up():
    assert at_least(2, 3, 0.5) == pytest.approx(0.5)
    assert (at_least(0, 3, 0.2), at_least(1, 3, 0.0), at_least(3, 3, 1.0)) == (1.0, 0.0, 1.0)

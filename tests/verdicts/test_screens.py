import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.verdicts.reach import moment_cosine, second_moment_floor, update_profile


def adam_moment(before, gradients, beta2):
    moment = before.copy()
    for gradient in gradients:
        moment = moment * np.float32(beta2) + np.float32(1 - beta2) * gradient * gradient
    return moment


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.9, 0.95, 0.999]),
    st.integers(1, 60),
    st.sampled_from([0, 1e-12, 1.0]),
)
def test_adam_in_float32_never_falls_below_the_floor(seed, beta2, steps, scale):
    rng = np.random.default_rng(seed)
    before = np.square(rng.normal(0, 1, 50)).astype(np.float32) * np.float32(1e-4)
    after = adam_moment(before, scale * rng.normal(0, 1, (steps, 50)).astype(np.float32), beta2)
    assert second_moment_floor(before, after, beta2, steps).agrees


def test_a_reset_optimizer_falls_short_of_everything():
    before = np.full(10, 1e-4, np.float32)
    finding = second_moment_floor(before, np.zeros(10, np.float32), 0.999, 20, where="w")
    assert (finding.distance, finding.where, finding.agrees) == (1.0, "w", False)


def test_a_moment_spliced_from_another_run_is_caught_by_one_element():
    before = np.full(1000, 1e-4, np.float32)
    after = before.copy()
    after[123] = 0.97e-4  # 20 steps of beta2 = 0.999 keep at least 98 %
    assert not second_moment_floor(before, after, 0.999, 20).agrees
    assert second_moment_floor(before, after, 0.999, 40).agrees


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_an_impossible_moment_never_agrees(value):
    good, bad = np.full(3, 1e-4, np.float32), np.array([1e-4, value, 1e-4], np.float32)
    assert not second_moment_floor(good, bad, 0.999, 1).agrees
    assert not second_moment_floor(bad, good, 0.999, 1).agrees


def test_a_profile_forgives_ordinary_spread_and_names_the_outlier():
    norms = [1.0, 1.1, 0.9, 1.05, 0.97, 1.02, 0.95, 1.0]
    assert update_profile(norms).agrees
    finding = update_profile([*norms[:5], 0.01, *norms[5:]])
    assert (finding.agrees, finding.where) == (False, "5")


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf])
def test_a_norm_that_is_none_stands_out(norm):
    finding = update_profile([1.0, 1.0, norm])
    assert (finding.distance, finding.where) == (math.inf, "2")


def test_equal_norms_show_nothing_and_one_different_stands_out():
    assert update_profile([2.0] * 5).agrees
    assert not update_profile([2.0, 2.0, 2.0, 2.0, 2.1]).agrees
    assert update_profile([1.0, 100.0]).agrees


def test_an_update_down_its_moment_is_forgiven_and_one_up_it_is_caught():
    rng = np.random.default_rng(0)
    start, moment = rng.normal(size=500), rng.normal(size=500)
    assert moment_cosine(start, start - 1e-3 * moment, moment).distance == pytest.approx(0.0, abs=1e-9)
    assert not moment_cosine(start, start + 1e-3 * moment, moment, where="w").agrees


def test_no_direction_never_agrees():
    assert not moment_cosine(np.ones(3), np.ones(3), np.ones(3)).agrees

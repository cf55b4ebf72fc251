import math

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.verdicts.distances import Residual, ResidualLimits, measure_drift
from tallystick.verdicts.tolerance import ReplayedState

RATE = 1e-3
LIMITS = ResidualLimits(overall=6e-5, worst_tensor=2e-3, mismatch_share=1e-2, element=0.1, stretch=5e-4)
RESIDUAL = Residual(LIMITS)


def segment(seed=0):
    rng = np.random.default_rng(seed)
    start = {
        "w": rng.normal(0, 0.02, (200, 100)).astype(np.float32),
        "bias": rng.normal(0, 0.02, 300).astype(np.float32),
        "rng": rng.integers(0, 255, 16, dtype=np.uint8),
    }
    end = {k: v + RATE * np.sign(rng.normal(size=v.shape)).astype(v.dtype) for k, v in start.items() if k != "rng"}
    return ReplayedState(start, {**end, "rng": start["rng"] + np.uint8(1)})


def drifted(state, scale=3e-9):
    noise = np.random.default_rng(1)
    return {
        k: v if v.dtype == np.uint8 else v + noise.normal(0, scale, v.shape).astype(np.float32)
        for k, v in state.items()
    }


def findings(claimed, replayed=None, residual=RESIDUAL, rate=RATE):
    return {each.name: each for each in residual.compare(claimed, replayed or segment(), rate)}


def objections(claimed, replayed=None, residual=RESIDUAL):
    return {name for name, each in findings(claimed, replayed, residual).items() if not each.agrees}


def edited(name, change):
    state = dict(segment().end)
    state[name] = change(state[name].copy())
    return state


def test_honest_drift_is_forgiven():
    assert objections(drifted(segment().end)) == set()


def test_an_equal_state_has_no_distance():
    assert {each.distance for name, each in findings(segment().end).items() if name != "update-floor"} == {0.0}


def test_a_learning_rate_raised_by_a_thousandth_is_caught():
    replayed = segment()
    longer = {
        k: v if v.dtype == np.uint8 else replayed.start[k] + np.float32(1.001) * (v - replayed.start[k])
        for k, v in replayed.end.items()
    }
    found = findings(longer, replayed)
    assert found["residual"].distance == pytest.approx(1e-3, rel=0.02)
    assert {"residual", "stretch"} <= objections(longer, replayed)


def test_the_stretch_sees_a_longer_update_under_noise_that_hides_it_from_the_norm():
    loose = Residual(ResidualLimits(0.1, 0.5, 1.0, 10.0, stretch=5e-4))
    replayed = segment()
    noisy = drifted(replayed.end, 2e-5)
    longer = {
        k: v if v.dtype == np.uint8 else v + np.float32(2e-3) * (replayed.end[k] - replayed.start[k])
        for k, v in noisy.items()
    }
    assert objections(noisy, replayed, loose) == set()
    assert objections(longer, replayed, loose) == {"stretch"}


def test_an_interpolated_chain_is_caught_although_its_distance_is_tiny():
    replayed = segment()
    elsewhere = {
        k: v if v.dtype == np.uint8 else replayed.start[k] + np.float32(1e-5) for k, v in replayed.end.items()
    } | {"rng": replayed.end["rng"]}
    assert findings(elsewhere, replayed)["residual"].distance == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("scale", [0.0, 1e-9])
def test_an_infinitesimal_update_falls_below_the_floor_on_either_side(scale):
    start = {k: v.astype(np.float64) for k, v in segment().start.items() if v.dtype == np.float32}
    tiny = {k: v * (1 + scale) for k, v in start.items()}
    real = {k: v + RATE for k, v in start.items()}
    assert "update-floor" in objections(tiny, ReplayedState(start, tiny))
    assert "update-floor" in objections(tiny, ReplayedState(start, real))
    assert "update-floor" in objections(real, ReplayedState(start, tiny))
    assert objections(real, ReplayedState(start, real)) == set()


def test_one_edited_tensor_is_named():
    state = edited("bias", lambda values: values + np.float32(1e-5))
    found = findings(state)
    assert (found["residual-tensor"].where, found["residual-tensor"].agrees) == ("bias", False)


def test_one_edited_element_hides_in_the_norms_and_meets_the_cap():
    residual = Residual(ResidualLimits(overall=0.1, worst_tensor=0.1, mismatch_share=1.0, element=0.1))
    state = edited("w", lambda values: np.where(np.arange(values.size).reshape(values.shape) == 7, 0.03, values))
    assert objections(state, residual=residual) == {"element"}
    assert findings(state, residual=residual)["element"].where == "w"


def test_bucket_mismatches_are_counted_as_a_share():
    state = edited("w", lambda values: values * np.float32(1.01))
    found = findings(state)["mismatches"]
    assert found.where == "w"
    assert found.distance > 0.9
    assert findings(drifted(segment().end))["mismatches"].distance < 1e-2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["claimed", "both"])
def test_one_value_that_is_not_finite_never_agrees(value, side):
    def planted(values):
        values[3] = value
        return values

    state = edited("bias", planted)
    replayed = ReplayedState(segment().start, state) if side == "both" else segment()
    assert "non-finite" in objections(state, replayed)


def test_whole_numbers_must_be_equal():
    assert objections(edited("rng", lambda values: values + np.uint8(1))) == {"whole-numbers"}


def test_a_frozen_tensor_may_not_move():
    start = {"w": segment().start["w"], "frozen": np.ones(10, np.float32)}
    end = {"w": segment().end["w"], "frozen": np.ones(10, np.float32)}
    assert objections(end, ReplayedState(start, end)) == set()
    thawed = {**end, "frozen": np.full(10, 1.0001, np.float32)}
    assert "residual-tensor" in objections(thawed, ReplayedState(start, end))


def test_a_step_counter_does_not_drown_the_overall_residual():
    start = {"w": segment().start["w"], "step": np.float32(100)}
    end = {"w": segment().end["w"], "step": np.float32(101)}
    wrong = {**end, "w": end["w"] + np.float32(1e-4)}
    plain = findings({"w": wrong["w"]}, ReplayedState({"w": start["w"]}, {"w": end["w"]}))
    assert findings(wrong, ReplayedState(start, end))["residual"] == plain["residual"]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {k: v for k, v in state.items() if k != "bias"},
        lambda state: {**state, "extra": np.ones(1, np.float32)},
        lambda state: {**state, "bias": state["bias"].reshape(1, -1)},
        lambda state: {**state, "bias": state["bias"].astype(np.float64)},
    ],
)
def test_a_state_of_another_make_is_a_finding_and_not_a_crash(change):
    (found,) = RESIDUAL.compare(change(segment().end), segment(), RATE)
    assert (found.name, found.agrees) == ("tensors", False)


def test_an_aligned_edit_shows_in_the_bias_and_symmetric_noise_does_not():
    replayed = segment()
    assert RESIDUAL.advise(drifted(replayed.end, 1e-6), replayed).agrees
    aligned = {k: v if v.dtype == np.uint8 else v + np.float32(2e-7) for k, v in drifted(replayed.end, 1e-6).items()}
    advice = RESIDUAL.advise(aligned, replayed)
    assert (advice.where, advice.advisory, advice.agrees) == ("w", True, False)


def test_the_measures_do_not_depend_on_the_size_of_the_pieces():
    replayed = segment()
    tensors = [Tensor.of(each["w"]) for each in (drifted(replayed.end, 1e-5), replayed.start, replayed.end)]
    whole, small = measure_drift("w", *tensors), measure_drift("w", *tensors, piece=77)
    assert (whole.size, whole.mismatches, whole.element_max) == (
        small.size,
        small.mismatches,
        small.element_max,
    )
    assert whole.difference_squares == pytest.approx(small.difference_squares, rel=1e-12)


def test_a_zero_learning_rate_allows_no_difference():
    found = findings(drifted(segment().end), rate=0.0)
    assert math.isinf(found["element"].distance)

import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest as noun_digest, digest_bytes
from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.programs.random_words import words
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.tolerance import ReplayedState

SEED = bytes(range(32))
PROJECTION = Projection(SEED)


def random_state(seed, scale=0.02):
    rng = np.random.default_rng(seed)
    return {
        "layer.weight": rng.normal(0, scale, (37, 53)).astype(np.float32),
        "layer.bias": rng.normal(0, scale, 5).astype(np.float32),
    }


def sketch_by_hand(projection, state):
    total = [0.0] * projection.width
    for name in sorted(state):
        key = digest_bytes(noun_digest("projection", encode([projection.seed.hex(), name, projection.width])))
        for index, value in enumerate(state[name].reshape(-1).tolist()):
            row, column = divmod(index, projection.width)
            bit = int(words(key, 1, row // 64)[0]) >> (row % 64) & 1
            total[column] += -value if bit else value
    return total


def moved(state, share):
    rng = np.random.default_rng(9)
    return {k: v + share * rng.normal(0, 0.02, v.shape).astype(np.float32) for k, v in state.items()}


@pytest.mark.parametrize("width", [1, 16, 100])
def test_the_sketch_is_the_specified_sum(width):
    projection, state = Projection(SEED, width), random_state(1)
    assert np.allclose(projection.sketch(state), sketch_by_hand(projection, state), rtol=0, atol=1e-12)


def test_the_sketch_does_not_depend_on_how_a_tensor_is_read(monkeypatch):
    state = random_state(1)
    whole = PROJECTION.sketch(state)
    monkeypatch.setattr("tallystick.verdicts.distances.PIECE", 48)
    assert np.allclose(PROJECTION.sketch(state), whole, rtol=0, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(-2, 2))
def test_the_sketch_is_linear(seed, factor):
    left, right = random_state(seed), random_state(seed + 1)
    both = {name: left[name].astype(np.float64) + factor * right[name].astype(np.float64) for name in left}
    assert np.allclose(
        PROJECTION.sketch(both), PROJECTION.sketch(left) + factor * PROJECTION.sketch(right), rtol=0, atol=1e-12
    )


def test_the_squared_norm_of_the_sketch_is_on_average_that_of_the_state():
    state = random_state(3)
    squares = [np.square(Projection(bytes([i]) * 32).sketch(state)).sum() for i in range(200)]
    assert np.mean(squares) == pytest.approx(sum(np.square(v).sum() for v in state.values()), rel=0.2)


def test_whole_numbers_are_left_out():
    state = random_state(1)
    assert PROJECTION.summarize({**state, "rng": np.arange(9)}) == PROJECTION.summarize(state)


def test_signs_are_balanced_and_depend_on_seed_name_and_width():
    signs = PROJECTION.signs("w", 10_000)
    assert set(signs.tolist()) == {-1, 1}
    assert abs(int(signs.sum())) < 400
    others = [
        Projection(bytes(32)).signs("w", 64),
        PROJECTION.signs("v", 64),
        Projection(SEED, 8).signs("w", 64),
    ]
    assert all((signs[:64] != other).any() for other in others)
    assert (PROJECTION.signs("w", 70)[:64] == signs[:64]).all()


def test_the_summary_is_little_endian_float32():
    state = random_state(1)
    assert struct.unpack("<16f", PROJECTION.summarize(state)) == pytest.approx(PROJECTION.sketch(state), rel=1e-6)


def test_an_equal_replay_has_distance_zero():
    start, end = random_state(1), moved(random_state(1), 0.1)
    finding = PROJECTION.compare(PROJECTION.summarize(end), ReplayedState(start, end))
    assert (finding.distance, finding.name) == (0.0, "projection")


def test_drift_far_below_the_update_is_forgiven():
    start, end = random_state(1), moved(random_state(1), 0.1)
    claimed = PROJECTION.summarize({k: v + np.float32(1e-7) * np.sign(v) for k, v in end.items()})
    assert PROJECTION.compare(claimed, ReplayedState(start, end)).agrees


def test_an_update_one_percent_too_long_is_caught():
    start = random_state(1)
    end = moved(start, 0.1)
    longer = {name: start[name] + 1.01 * (end[name] - start[name]) for name in start}
    finding = PROJECTION.compare(PROJECTION.summarize(longer), ReplayedState(start, end))
    assert finding.distance == pytest.approx(0.01, rel=1e-2)
    assert not finding.agrees


def test_an_infinitesimal_update_does_not_blow_rounding_up():
    state = random_state(1)
    claimed = PROJECTION.summarize({k: np.nextafter(v, np.float32(1)) for k, v in state.items()})
    assert PROJECTION.compare(claimed, ReplayedState(state, state)).agrees


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_state_beyond_float32_agrees_with_nothing(value):
    start, end = random_state(1), {**random_state(1), "extra": np.array([value])}
    assert not PROJECTION.compare(PROJECTION.summarize(end), ReplayedState(start, end)).agrees


def test_a_prover_who_knows_the_seed_forges_the_sketch_exactly():
    """The reason why a projection with a known seed is a screen and never a binding."""
    start, honest = random_state(1), moved(random_state(1), 0.1)
    stolen = {name: value.astype(np.float64) for name, value in random_state(77).items()}
    missing = PROJECTION.sketch(honest) - PROJECTION.sketch(stolen)
    rows = stolen["layer.weight"].size // PROJECTION.width
    signs = PROJECTION.signs("layer.weight", rows).astype(np.float64)
    flat = stolen["layer.weight"].reshape(-1)
    flat[: rows * PROJECTION.width] += (np.outer(signs, missing) / rows).reshape(-1)
    finding = PROJECTION.compare(PROJECTION.summarize(stolen), ReplayedState(start, honest))
    assert finding.agrees
    assert finding.distance < 1e-6
    far = np.linalg.norm(stolen["layer.weight"] - honest["layer.weight"])
    assert far > np.linalg.norm(honest["layer.weight"])


def test_brain_floats_count_by_their_values():
    brain = Tensor("BF16", (2,), np.array([0x3F80, 0xC000], "<u2").tobytes())
    assert (PROJECTION.sketch({"w": brain}) == PROJECTION.sketch({"w": np.array([1.0, -2.0])})).all()


def test_sketches_taken_elsewhere_are_compared_the_same_way():
    start, end = random_state(1), moved(random_state(1), 0.1)
    claimed = PROJECTION.summarize(random_state(2))
    there = PROJECTION.compare_sketches(claimed, PROJECTION.sketch(start), PROJECTION.sketch(end))
    assert there == PROJECTION.compare(claimed, ReplayedState(start, end))


@pytest.mark.parametrize("size", [0, 63, 65, 128])
def test_a_summary_of_another_width_is_malformed(size):
    with pytest.raises(MalformedError, match="projection summary"):
        PROJECTION.decode(bytes(size))


@pytest.mark.parametrize("settings", [{"seed": bytes(31)}, {"seed": SEED, "width": 0}, {"seed": SEED, "width": 4097}])
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(UsageError):
        Projection(**settings)


@pytest.mark.parametrize("elements", [10**3, 10**5, 10**7])
def test_sums_in_binary32_lie_within_the_rounding_that_is_allowed(elements):
    """One running sum a column, the worst order that an honest recorder may choose; the largest number comes first."""
    values = np.random.default_rng(2).normal(0, 0.02, elements // 16 * 16).astype(np.float32)
    values[:16] = 50 * np.abs(values).max()
    signed = PROJECTION.signs("", elements // 16)[:, None] * values.reshape(-1, 16)
    summed = np.cumsum(signed, axis=0, dtype=np.float32)[-1].astype(np.float64)
    gap = np.linalg.norm(summed - PROJECTION.sketch(values))
    assert gap <= PROJECTION.rounding(elements) * np.linalg.norm(values.astype(np.float64))


def test_the_rounding_allowed_grows_with_the_root_of_the_size():
    assert PROJECTION.rounding(10**9) == pytest.approx(10 * PROJECTION.rounding(10**7), rel=1e-2)
    assert PROJECTION.rounding(10**9) < 2e-3

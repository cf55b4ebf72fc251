import hashlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.verdicts.buckets import (
    Bucket,
    BucketClaim,
    DualBucket,
    TensorHints,
    bucket_codes,
    encode_hints,
    nearest_edges,
)
from tallystick.verdicts.tolerance import Replayed, ReplayedState

MODES = st.sampled_from(["fp16_rne", "grid"])


def agrees(tolerance, claimed_values, replayed_values):
    return tolerance.compare(tolerance.summarize(claimed_values), Replayed((), replayed_values)).agrees


def gap_below_drift(values, mode, eps):
    """The smaller gap at the two edges of each value's bucket, in the units of the values."""
    if mode == "grid":
        return np.full(values.shape, eps)
    rounded = np.abs(values.astype(np.float16).astype(np.float64))
    exponents = np.where(rounded == 0, -14, np.frexp(rounded)[1] - 1)
    return np.exp2(np.maximum(exponents - 1, -14) - 10.0)  # one octave down, for a bucket at a power of two


def test_drift_inside_the_bucket_is_forgiven():
    weights = np.array([1.0, 2.0, -3.0], np.float32)
    assert agrees(Bucket(), weights, weights + np.float32(1e-5))


def test_weights_edited_by_a_thousandth_are_caught():
    weights = np.array([1.0, 2.0, -3.0], np.float32)
    assert not agrees(Bucket(), weights, weights * np.float32(1.001))


def test_drift_across_an_edge_is_caught_without_hints_and_forgiven_with_them():
    edge = np.float32(1 + 2**-11)
    below, above = np.nextafter(edge, np.float32(0)), np.nextafter(edge, np.float32(2))
    claimed, replayed = np.array([below, 0.3]), np.array([above, 0.3])
    assert not agrees(Bucket(), claimed, replayed)
    assert agrees(Bucket(hint_margin=0.01), claimed, replayed)


@settings(max_examples=300, deadline=None)
@given(
    MODES,
    st.sampled_from([2.0**-10, 2.0**-4, 0.25]),
    st.integers(0, 2**32),
    st.sampled_from([-24, -14, -6, 0, 12]),
)
def test_drift_up_to_the_margin_always_agrees(mode, margin, seed, exponent):
    eps = 2.0**-12  # a power of two, so that the drift in gaps is exact
    rng = np.random.default_rng(seed)
    values = rng.uniform(-4, 4, 60) * 2.0**exponent
    values[::3] = on_edges(values[::3], mode, eps) + rng.choice([-1, 0, 1], 20) * margin * gap_below_drift(
        values[::3], mode, eps
    )
    drift = rng.choice([-1, -0.5, 0.5, 1], 60) * margin * gap_below_drift(values, mode, eps)
    assert agrees(Bucket(mode, eps, margin), values, values + drift)


def on_edges(values, mode, eps):
    edges = nearest_edges(values, mode, eps)
    if mode == "grid":
        return (edges.lower + 0.5) * eps
    return (float16_point(edges.lower) + float16_point(edges.lower + 1)) / 2


def float16_point(codes):
    return np.sign(codes) * np.abs(codes).astype("<u2").view("<f2").astype(np.float64)


@settings(max_examples=200, deadline=None)
@given(MODES, st.integers(0, 2**32), st.booleans())
def test_a_hint_outside_the_margin_is_never_honoured(mode, seed, side):
    bucket = Bucket(mode, 2.0**-12, 0.1)
    values = np.random.default_rng(seed).uniform(-4, 4, 50)
    values = values[~nearest_edges(values, mode, 2.0**-12).within(0.1)]
    lies = TensorHints(values.size, np.arange(values.size), np.full(values.size, side))
    assert bucket.digest(values, {"": lies}) == bucket.digest(values)


def test_a_hint_inside_the_margin_moves_the_value_across_that_edge_only():
    bucket = Bucket(hint_margin=0.1)
    values = np.array([1 + 2**-11 + 2**-16])  # just above the edge between 1 and its successor
    down = TensorHints(1, np.array([0]), np.array([False]))
    assert bucket.codes(Tensor.of(values), down).tolist() == bucket_codes(np.array([1.0]), "fp16_rne").tolist()


def test_no_margin_honours_no_hint_even_on_the_edge():
    values = np.array([1 + 2**-11])
    lie = TensorHints(1, np.array([0]), np.array([True]))
    assert Bucket().digest(values, {"": lie}) == Bucket().digest(values)
    assert Bucket(hint_margin=1e-9).digest(values, {"": lie}) != Bucket().digest(values)


def test_hints_reach_across_pieces(monkeypatch):
    rng = np.random.default_rng(5)
    values = rng.normal(0, 0.02, 1000).astype(np.float32)
    bucket = Bucket(hint_margin=0.1)
    whole = bucket.claim(values)
    drifted = values * (1 + rng.normal(0, 1e-6, 1000)).astype(np.float32)
    monkeypatch.setattr("tallystick.verdicts.exact.pieces.__defaults__", (64,))
    assert bucket.claim(values) == whole
    assert bucket.compare(whole.to_bytes(), Replayed((), drifted)).agrees


def test_values_that_overflow_do_not_share_a_bucket():
    assert not agrees(Bucket(), np.array([7e4, 1.0]), np.array([9e4, 1.0]))
    assert agrees(Bucket(), np.array([7e4, 1.0]), np.array([7e4, 1.0]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_planted_value_that_is_not_finite_is_caught(value):
    clean = np.ones(4, np.float32)
    dirty = clean.copy()
    dirty[2] = value
    assert not agrees(Bucket(), clean, dirty)
    assert agrees(Bucket(), dirty, dirty.copy())


def test_negative_zero_is_zero():
    assert agrees(Bucket(), np.zeros(3, np.float32), -np.zeros(3, np.float32))


def test_whole_numbers_enter_by_their_exact_bytes():
    assert not agrees(Bucket(), np.arange(4), np.arange(4) + 1)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": np.ones(2)}, {"b": np.ones(2)}),
        ({"a": np.ones((2, 3))}, {"a": np.ones((3, 2))}),
        ({"a": np.ones(2)}, {"a": np.ones(2, np.float32)}),
        ({"a": np.ones(2), "b": np.ones(1)}, {"a": np.ones(1), "b": np.ones(2)}),
        ({"a": np.ones(2)}, {"a": np.ones(2), "b": np.ones(0)}),
    ],
)
def test_names_shapes_and_dtypes_are_covered(left, right):
    assert Bucket().digest(left) != Bucket().digest(right)
    assert Bucket().digest(left) == Bucket().digest(dict(left))


def test_two_states_that_the_seed_concatenates_to_the_same_bytes_are_told_apart():
    def seeded(state):
        data = b"".join(name.encode() + b"\0" + state[name].astype("<f2").tobytes() for name in sorted(state))
        return hashlib.sha256(data).digest()

    name_of_b = np.array([0x0062], "<u2").view("<f2").astype(np.float32)  # the bytes of "b" and 0x00
    one = {"a": np.array([1.0, name_of_b[0], 2.0], np.float32)}
    two = {"a": np.array([1.0], np.float32), "b": np.array([2.0], np.float32)}
    assert seeded(one) == seeded(two)
    assert Bucket().digest(one) != Bucket().digest(two)


def test_mode_and_step_are_covered():
    values = np.zeros(4)
    digests = {
        Bucket().digest(values),
        Bucket("grid", 1e-6).digest(values),
        Bucket("grid", 1e-5).digest(values),
    }
    assert len(digests) == 3


@pytest.mark.parametrize("settings", [{"mode": "fp8"}, {"grid_eps": 0.0}, {"grid_eps": 2.0}, {"hint_margin": 0.26}])
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(UsageError):
        Bucket(**settings)


def test_a_claim_survives_the_round_trip():
    claim = Bucket(hint_margin=0.25).claim(np.linspace(0, 1, 100))
    assert len(claim.hints) > 50
    assert BucketClaim.from_bytes(claim.to_bytes()) == claim


def test_hints_that_do_not_fit_the_replay_are_malformed():
    values = np.linspace(0, 1, 10)
    bucket = Bucket(hint_margin=0.1)
    for stray in ({"x": 10}, {"": 11}):
        blob = encode_hints({k: TensorHints(n, np.array([0]), np.array([True])) for k, n in stray.items()})
        with pytest.raises(MalformedError, match="no tensor"):
            bucket.compare(BucketClaim(bucket.digest(values), blob).to_bytes(), Replayed((), values))


@pytest.mark.parametrize("claimed", [b"", bytes(31), bytes(33)])
def test_a_malformed_summary_is_refused(claimed):
    with pytest.raises(MalformedError):
        Bucket().compare(claimed, Replayed((), np.ones(2)))


def test_a_dual_bucket_needs_both_and_names_the_one_that_differs():
    weights = np.array([0.5, 1.0])
    inside_float16_only = weights + 2e-6
    finding = DualBucket().compare(DualBucket().summarize(weights), Replayed((), inside_float16_only))
    assert (finding.distance, finding.where) == (1.0, "bucket-grid")
    assert agrees(DualBucket(), weights, weights + 1e-8)


@pytest.mark.parametrize("claimed", [b"", b"\xff" * 8, b"\x20" + bytes(20)])
def test_a_malformed_dual_summary_is_refused(claimed):
    with pytest.raises(MalformedError, match="dual bucket"):
        DualBucket().compare(claimed, Replayed((), np.ones(2)))


def test_half_and_brain_floats_have_buckets():
    start = {"h": np.ones(3, np.float16)}
    assert agrees(Bucket(), start["h"], start["h"])
    brain = Tensor("BF16", (2,), np.array([0x3F80, 0xBF80], "<u2").tobytes())
    claimed = Bucket("grid", 0.5).summarize({"b": brain})
    assert Bucket("grid", 0.5).compare(claimed, ReplayedState({}, {"b": brain})).agrees
    assert Bucket("grid", 0.5).codes(brain).tolist() == [2, -2]

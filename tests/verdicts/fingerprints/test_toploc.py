import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import bfloat16_to_float32, round_to_bfloat16
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.verdicts import toploc
from tallystick.verdicts.fingerprints import encode_rows, measure

CHOSEN = FingerprintSettings.toploc(2)


def block(seed=0, tokens=32, size=64):
    rows = np.random.default_rng(seed).normal(0, 3, (tokens, size)).astype(np.float32)
    return bfloat16_to_float32(round_to_bfloat16(rows))


def compared(claimed, own, values=128):
    return toploc.compare_block(*toploc.parse_block(toploc.encode_block(claimed, values), values), own)


def test_the_wire_form_is_258_bytes_for_32_tokens():
    rows = {2: block(tokens=96)}
    assert len(encode_rows(rows, CHOSEN)) == 3 * 258
    assert len(toploc.encode_block(block(), 128)) == toploc.block_bytes(128) == 258


def test_own_states_agree_exactly():
    for found in measure(encode_rows({2: block(tokens=70)}, CHOSEN), {2: block(tokens=70)}, CHOSEN):
        assert (found.distance, found.mantissa_mean, found.mantissa_median) == (0.0, 0.0, 0.0)


def test_other_states_share_no_exponents():
    assert compared(block(1), block()).exponents > 100


def test_small_noise_shows_in_mantissas():
    rng = np.random.default_rng(1)
    found = compared(block() * (1 + 0.01 * rng.normal(size=(32, 64)).astype(np.float32)), block())
    assert found.exponents < 38
    assert 0 < found.mantissa_mean < 10


def test_it_is_blind_to_signs():
    flipped = block() * np.where(np.random.default_rng(1).random((32, 64)) < 0.5, -1, 1).astype(np.float32)
    for claimed in (-block(), flipped):
        assert compared(claimed, block()) == toploc.Mismatch(0, 128, 0.0, 0.0)


def test_it_is_blind_to_all_but_the_largest_values():
    indices, _ = toploc.largest_values(block(), 128)
    others = np.zeros(32 * 64, np.float32)
    others[indices] = block().reshape(-1)[indices]
    assert np.count_nonzero(others) == 128
    assert compared(others.reshape(32, 64), block()) == toploc.Mismatch(0, 128, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(12))
def test_indices_beyond_the_modulus_are_reduced_on_both_sides(seed):
    """Long blocks have indices above 65497; a verifier that forgets to reduce them rejects honest providers."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((32, 4096), np.float32)
    indices = rng.choice(32 * 4096, 128, replace=False)
    rows.reshape(-1)[indices] = rng.normal(0, 8, 128).astype(np.float32)
    assert indices.max() > toploc.PRIME
    assert compared(rows, rows).exponents == 0
    modulus, _ = toploc.parse_block(toploc.encode_block(rows, 128), 128)
    assert len(np.unique(indices % modulus)) == 128


def test_a_smaller_modulus_is_found_where_the_largest_is_not_injective():
    indices = np.array([5, 5 + toploc.PRIME, 100])
    modulus = toploc.injective_modulus(indices)
    assert modulus == toploc.PRIME - 1
    rows = np.zeros((2, toploc.PRIME), np.float32)
    rows.reshape(-1)[indices] = [1.0, -2.0, 3.0]
    assert compared(rows, rows, 3) == toploc.Mismatch(0, 3, 0.0, 0.0)


def test_where_there_is_no_modulus_there_is_no_congruence(monkeypatch):
    monkeypatch.setattr(toploc, "MODULUS_MIN", toploc.PRIME - 3)
    assert toploc.injective_modulus(np.array([0, toploc.PRIME, toploc.PRIME - 1])) == toploc.PRIME - 2
    with pytest.raises(UnavailableError, match="modulus"):
        toploc.injective_modulus(np.array([0, toploc.PRIME, toploc.PRIME - 1, toploc.PRIME - 2]))


@given(st.lists(st.integers(0, toploc.PRIME - 1), min_size=1, max_size=40, unique=True), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_the_polynomial_goes_through_its_points(points, seed):
    values = np.random.default_rng(seed).integers(0, toploc.PRIME, len(points))
    places = np.array(points, np.int64)
    coefficients = toploc.interpolate(places, values)
    assert toploc.evaluate(coefficients, places).tolist() == values.tolist()
    assert coefficients.min() >= 0
    assert coefficients.max() < toploc.PRIME


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"\0\0" + data[2:], "modulus 0"),
        (lambda data: b"\x80\0" + data[2:], "modulus 32768"),
        (lambda data: b"\xff\xda" + data[2:], "modulus 65498"),
        (lambda data: data[:2] + b"\xff\xd9" + data[4:], "coefficient of 65497"),
        (lambda data: b"", "0 bytes"),
        (lambda data: data[:2], "2 bytes"),
        (lambda data: data[:-1], "257 bytes"),
        (lambda data: data[:-2], "256 bytes"),
        (lambda data: data + b"\0\0", "260 bytes"),
    ],
)
def test_what_is_no_congruence_is_refused(change, message):
    data = toploc.encode_block(block(), 128)
    assert toploc.parse_block(data, 128)[0] == toploc.PRIME
    with pytest.raises(MalformedError, match=message):
        toploc.parse_block(change(data), 128)


def test_missing_and_surplus_blocks_are_refused():
    rows = {2: block(tokens=70)}
    data = encode_rows(rows, CHOSEN)
    assert len(measure(data, rows, CHOSEN)) == 3
    for wrong in (b"", data[:258], data[:516], data + data[:258]):
        with pytest.raises(MalformedError, match="70 tokens take"):
            measure(wrong, rows, CHOSEN)


@given(st.binary(min_size=258, max_size=258))
@settings(max_examples=30, deadline=None)
def test_any_bytes_are_a_congruence_or_refused(data):
    try:
        claimed = toploc.parse_block(data, 128)
    except MalformedError:
        return
    assert 0 <= toploc.compare_block(*claimed, block()).exponents <= 128


def test_a_short_block_has_as_many_values_as_there_are():
    rows = {2: block(tokens=33, size=8)}
    data = encode_rows(rows, CHOSEN)
    assert len(data) == toploc.block_bytes(128) + toploc.block_bytes(8)
    assert [each.distance for each in measure(data, rows, CHOSEN)] == [0.0, 0.0]

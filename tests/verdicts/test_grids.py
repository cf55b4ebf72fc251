import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from tallystick.core.errors import MalformedError
from tallystick.verdicts.buckets import bucket_codes, in_range, nearest_edges

FLOAT32 = st.floats(-65519, 65519, width=32)


def code_by_struct(value: float) -> int:
    (bits,) = struct.unpack("<H", struct.pack("<e", value))
    return bits if bits < 0x8000 else 0x8000 - bits


def point(code: int) -> Fraction:
    if abs(code) == 0x7C00:
        return Fraction(65536 if code > 0 else -65536)
    (size,) = struct.unpack("<e", struct.pack("<H", abs(code)))
    return Fraction(size) * (1 if code >= 0 else -1)


@settings(max_examples=200, deadline=None)
@given(FLOAT32)
def test_float16_codes_follow_the_ieee_conversion(value):
    assert bucket_codes(np.array([value], np.float32), "fp16_rne")[0] == code_by_struct(value)


@settings(max_examples=200, deadline=None)
@given(st.integers(-0x7BFF, 0x7BFE))
def test_a_tie_between_two_float16_numbers_goes_to_the_even_one(lower):
    middle = float((point(lower) + point(lower + 1)) / 2)
    for dtype in (np.float32, np.float64):
        code = int(bucket_codes(np.array([middle], dtype), "fp16_rne")[0])
        assert code in (lower, lower + 1)
        assert code % 2 == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(-0x7BFF, 0x7BFE))
def test_the_next_values_on_either_side_of_an_edge_fall_on_either_side(lower):
    middle = np.float32(float((point(lower) + point(lower + 1)) / 2))
    around = np.array([np.nextafter(middle, np.float32(-np.inf)), np.nextafter(middle, np.float32(np.inf))])
    assert bucket_codes(around, "fp16_rne").tolist() == [lower, lower + 1]


@settings(max_examples=200, deadline=None)
@given(FLOAT32)
def test_the_nearest_float16_edge_is_exact_close_to_the_edge(value):
    edges = nearest_edges(np.array([value], np.float32), "fp16_rne")
    lower, offset = int(edges.lower[0]), float(edges.offset[0])
    low, high = point(lower), point(lower + 1)
    assert low <= Fraction(value) <= high
    exact = (Fraction(value) - (low + high) / 2) / (high - low)
    if abs(exact) <= Fraction(1, 4) and abs(low) < 65504 and abs(high) < 65504:
        assert Fraction(offset) == exact


def test_both_zeros_share_a_bucket():
    for mode in ("fp16_rne", "grid"):
        assert bucket_codes(np.array([0.0, -0.0, 1e-30, -1e-30]), mode).tolist() == [0, 0, 0, 0]


def test_rounding_is_from_the_value_itself_and_not_through_float32():
    just_above_a_tie = 1.0 + 2.0**-11 + 2.0**-50  # rounds to a tie in float32
    assert bucket_codes(np.array([just_above_a_tie]), "fp16_rne")[0] == code_by_struct(1.0) + 1


def test_subnormal_float16_numbers_are_buckets_of_their_own():
    values = np.array([2.0**-24, 1.5 * 2.0**-24, 2.5 * 2.0**-24, 2.0**-25, 1.0001 * 2.0**-25])
    assert bucket_codes(values, "fp16_rne").tolist() == [1, 2, 2, 0, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_last_value_below_the_overflow_has_a_bucket_and_the_first_above_has_none(dtype):
    edge = dtype(65520)
    below = np.nextafter(edge, dtype(0))
    assert bucket_codes(np.array([below, -below]), "fp16_rne").tolist() == [0x7BFF, -0x7BFF]
    assert not in_range(np.array([edge, -edge]), "fp16_rne").any()


@pytest.mark.parametrize("mode", ["fp16_rne", "grid"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_value_without_a_bucket_is_refused(mode, value):
    with pytest.raises(MalformedError, match="not finite"):
        bucket_codes(np.array([0.0, value]), mode)


def test_float16_arrays_are_in_range_up_to_their_largest_number():
    assert in_range(np.array([65504, -65504], np.float16), "fp16_rne").all()
    assert not in_range(np.array([np.inf, np.nan], np.float16), "fp16_rne").any()


@settings(max_examples=200, deadline=None)
@given(st.integers(-(2**40), 2**40), st.sampled_from([0.5, 2.0**-10, 2.0**-20]))
def test_a_tie_on_the_grid_goes_to_the_even_multiple(below, eps):
    code = int(bucket_codes(np.array([(below + 0.5) * eps]), "grid", eps)[0])
    assert code in (below, below + 1)
    assert code % 2 == 0


@settings(max_examples=100, deadline=None)
@given(arrays(np.float32, 20, elements=st.floats(-1, 1, width=32)), st.sampled_from([1e-6, 1e-3, 0.25]))
def test_grid_codes_are_the_rounded_quotients(values, eps):
    quotients = [float(value) / eps for value in values]
    assert bucket_codes(values, "grid", eps).tolist() == [round(quotient) for quotient in quotients]

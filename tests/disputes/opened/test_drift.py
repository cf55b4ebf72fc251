"""How far a child may drift: equal values are 0 apart, roundings stay within the tolerance, wrong values do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tallystick.disputes.opened.drift import ALLOWED, deviation, distance_in_units
from tallystick.tensors import Tensor

VALUES = np.linspace(-3, 3, 64).astype(np.float32)
UNIT = 2.0**-24


def tensor(values: np.ndarray) -> Tensor:
    return Tensor.of(np.ascontiguousarray(values))


def test_equal_bytes_are_no_distance_apart_nan_included() -> None:
    odd = np.array([np.nan, np.inf, -0.0, 1], np.float32)
    assert deviation(tensor(odd), tensor(odd), 1) == 0.0


def test_one_rounding_is_about_one_unit() -> None:
    moved = np.nextafter(VALUES, np.float32(np.inf)).astype(np.float32)
    assert 0.5 <= distance_in_units(tensor(moved), tensor(VALUES)) <= 2.0
    assert deviation(tensor(moved), tensor(VALUES), 1) <= 2 / ALLOWED


def test_a_small_element_is_measured_at_the_scale_of_its_tensor() -> None:
    own = np.array([1, 1, 1, 1e-12], np.float32)
    claimed = np.array([1, 1, 1, 2e-12], np.float32)
    assert distance_in_units(tensor(claimed), tensor(own)) < 1e-3


def test_the_tolerance_grows_like_the_root_of_the_operators() -> None:
    moved = (VALUES * np.float32(1 + 1e-3)).astype(np.float32)
    one, hundred = (deviation(tensor(moved), tensor(VALUES), count) for count in (1, 100))
    assert one == pytest.approx(10 * hundred)
    assert one > 1 > 0.1 * hundred


def test_what_is_not_finite_on_one_side_is_infinitely_far() -> None:
    for wrong in (np.nan, np.inf):
        claimed = VALUES.copy()
        claimed[3] = wrong
        assert math.isinf(deviation(tensor(claimed), tensor(VALUES), 1000))
        assert math.isinf(deviation(tensor(VALUES), tensor(claimed), 1000))


def test_another_spec_is_infinitely_far() -> None:
    assert math.isinf(deviation(tensor(VALUES), tensor(VALUES.reshape(8, 8)), 1))
    assert math.isinf(deviation(tensor(VALUES), tensor(VALUES.astype(np.float64)), 1))


def test_whole_numbers_may_differ_in_few_places() -> None:
    own = np.arange(1000)
    few, many = own.copy(), own.copy()
    few[0], many[:20] = 7, 0
    assert deviation(tensor(few), tensor(own), 5) <= 1 < deviation(tensor(many), tensor(own), 5)


def test_all_zeros_have_a_scale_too() -> None:
    zeros = np.zeros(4, np.float32)
    assert deviation(tensor(zeros + np.float32(1e-3)), tensor(zeros), 1) > 1
    assert distance_in_units(tensor(zeros + np.float32(UNIT)), tensor(VALUES[:4])) > 1


def test_numbers_at_the_end_of_their_range_are_compared_too() -> None:
    largest = np.array([np.finfo(np.float64).max, 1.0])
    assert deviation(tensor(-largest), tensor(largest), 1) > 1
    assert deviation(tensor(largest), tensor(largest), 1) == 0

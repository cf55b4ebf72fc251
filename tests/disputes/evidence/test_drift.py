"""How far a child may drift: equal values are 0 apart, roundings stay within the tolerance, wrong values do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.disputes.evidence.locate import ALLOWED, CHOICES_ALLOWED, Leeway, deviation, distance_in_units
from tallystick.programs.graph import Node
from tallystick.programs.operators.precision import FORMATS

VALUES = np.linspace(-3, 3, 64).astype(np.float32)
UNIT = 2.0**-24


def tensor(values: np.ndarray) -> Tensor:
    return Tensor.of(np.ascontiguousarray(values))


def far(claimed: np.ndarray, own: np.ndarray, operators: int = 1) -> float:
    return deviation(tensor(claimed), tensor(own), Leeway(operators))


def short(values: np.ndarray, dtype: str) -> Tensor:
    """In 16 bits, cut off."""
    held = values.astype(np.float32)
    return (
        tensor(held.astype(np.float16))
        if dtype == "F16"
        else Tensor.of((held.view(np.uint32) >> 16).astype(np.uint16), dtype)
    )


def test_equal_bytes_are_no_distance_apart_nan_included() -> None:
    odd = np.array([np.nan, np.inf, -0.0, 1], np.float32)
    assert far(odd, odd) == 0.0


def test_one_rounding_is_about_one_unit() -> None:
    moved = np.nextafter(VALUES, np.float32(np.inf)).astype(np.float32)
    assert 0.5 <= distance_in_units(tensor(moved), tensor(VALUES)) <= 2.0
    assert far(moved, VALUES) <= 2 / ALLOWED["F32"]


def test_a_small_element_is_measured_at_the_scale_of_its_tensor() -> None:
    own = np.array([1, 1, 1, 1e-12], np.float32)
    claimed = np.array([1, 1, 1, 2e-12], np.float32)
    assert distance_in_units(tensor(claimed), tensor(own)) < 1e-3


def test_the_tolerance_grows_like_the_root_of_the_operators() -> None:
    moved = (VALUES * np.float32(1 + 1e-3)).astype(np.float32)
    one, hundred = (far(moved, VALUES, count) for count in (1, 100))
    assert one == pytest.approx(10 * hundred)
    assert one > 1 > 0.1 * hundred


def test_what_is_not_finite_on_one_side_is_infinitely_far() -> None:
    for wrong in (np.nan, np.inf):
        claimed = VALUES.copy()
        claimed[3] = wrong
        assert math.isinf(far(claimed, VALUES, 1000))
        assert math.isinf(far(VALUES, claimed, 1000))


def test_another_spec_is_infinitely_far() -> None:
    assert math.isinf(far(VALUES, VALUES.reshape(8, 8)))
    assert math.isinf(far(VALUES, VALUES.astype(np.float64)))


def test_whole_numbers_are_exact_but_those_chosen_among_floats_may_differ_in_few_places() -> None:
    own = np.arange(1000)
    few, many, chosen = own.copy(), own.copy(), Leeway(5, chosen=frozenset({"n3"}))
    few[0], many[:20] = 7, 0
    assert deviation(tensor(few), tensor(own), chosen, "n3") == pytest.approx(0.001 / CHOICES_ALLOWED)
    assert deviation(tensor(many), tensor(own), chosen, "n3") > 1
    assert math.isinf(deviation(tensor(few), tensor(own), chosen, "n4"))
    assert deviation(tensor(own), tensor(own), chosen, "n4") == 0


def test_only_what_hangs_by_floats_is_chosen() -> None:
    x, mask, counted, number, moved = (TensorSpec(name, (4,)) for name in ("F32", "BOOL", "I64", "I64", "I64"))
    nodes = (
        Node(0, "aten.gt.Scalar", {"self": "x"}, {"other": 0.0}, (mask,)),
        Node(1, "aten._to_copy.default", {"self": "n0"}, {"dtype": "I64"}, (counted,)),
        Node(2, "aten.add.Scalar", {"self": "number"}, {"other": 1, "alpha": 1}, (moved,)),
    )
    leeway = Leeway.of(nodes, {"x": x, "number": number, "n0": mask, "n1": counted, "n2": moved})
    assert (leeway.operators, leeway.coarsest, leeway.chosen) == (3, "F32", {"n0", "n1"})


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_short_floats_have_a_tolerance_that_says_something(dtype: str) -> None:
    generator = np.random.default_rng(1)
    own = short(generator.normal(size=(8, 64)), dtype)
    unit = FORMATS[dtype].unit

    def off_by(claimed: np.ndarray, operators: int) -> float:
        return deviation(short(claimed, dtype), own, Leeway(operators))

    honest = own.values() * (1 + 2.6 * unit * generator.uniform(-1, 1, own.shape))
    assert 0 < off_by(honest, 1) < 0.5
    for operators in (1, 7, 1000):
        assert off_by(generator.permutation(own.values().ravel()).reshape(own.shape), operators) > 2
        assert off_by(0 * own.values(), operators) > 2
        assert off_by(own.values() / 2, operators) > 2


def test_what_was_computed_in_16_bits_may_drift_so_wherever_it_is_kept() -> None:
    moved = (VALUES * np.float32(1 + 2.0**-8)).astype(np.float32)
    assert deviation(tensor(moved), tensor(VALUES), Leeway(3)) > 1
    assert deviation(tensor(moved), tensor(VALUES), Leeway(3, "BF16")) < 1


def test_all_zeros_have_a_scale_too() -> None:
    zeros = np.zeros(4, np.float32)
    assert far(zeros + np.float32(1e-3), zeros) > 1
    assert distance_in_units(tensor(zeros + np.float32(UNIT)), tensor(VALUES[:4])) > 1


def test_numbers_at_the_end_of_their_range_are_compared_too() -> None:
    largest = np.array([np.finfo(np.float64).max, 1.0])
    assert far(-largest, largest) > 1
    assert far(largest, largest) == 0

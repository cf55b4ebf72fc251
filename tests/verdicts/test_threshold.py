from __future__ import annotations

import math

import numpy as np
import pytest

from tallystick.verdicts.bounds import NO_ERRORS, Errors, Threshold, errors_of, join, percentiles, rounding_errors

F32 = 2.0**-24


def honest(seed: int, size: int = 4096, scale: float = 0.01) -> Errors:
    random = np.random.default_rng(seed)
    reference = random.standard_normal(size)
    radius = np.full(size, 1e-5)
    return errors_of(reference + radius * scale * random.uniform(-1, 1, size), reference, radius, F32)


def shifted(by: float, part: slice) -> Errors:
    random = np.random.default_rng(3)
    reference = random.standard_normal(4096)
    claimed = reference + 1e-7 * random.uniform(-1, 1, 4096)
    claimed[part] += by
    return errors_of(claimed, reference, np.full(4096, 1e-5), F32)


def calibrated() -> Threshold:
    return Threshold(join(honest(seed) for seed in range(5)))


def test_an_honest_output_is_within_the_threshold() -> None:
    assert all(calibrated().judge(honest(seed)).agrees for seed in range(100, 120))


@pytest.mark.parametrize(
    ("by", "part", "where"),
    [
        (4e-7, slice(0, 1), "100% of elements"),
        (1e-7, slice(0, 4096), "bias"),
    ],
)
def test_an_output_moved_further_than_stacks_do_is_not(by: float, part: slice, where: str) -> None:
    finding = calibrated().judge(shifted(by, part))
    assert not finding.agrees
    assert finding.where == where


def test_a_threshold_is_never_wider_than_the_bound() -> None:
    loose = Threshold(join([honest(1, scale=0.9)]), safety=10.0)
    assert loose.allowed()[-1] == 1.0
    assert not loose.judge(honest(2, scale=1.5)).agrees
    assert loose.judge(honest(2, scale=0.9)).agrees


def test_an_operator_that_moves_data_allows_nothing() -> None:
    values = np.arange(64.0)
    exact = Threshold(errors_of(values, values, np.zeros(64), F32))
    assert exact.judge(errors_of(values, values, np.zeros(64), F32)).agrees
    finding = exact.judge(errors_of(values + 1e-12, values, np.zeros(64), F32))
    assert math.isinf(finding.distance)


def test_infinities_and_nans_have_to_be_the_same() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1.0])
    radius = np.full(4, 1e-6)
    assert errors_of(odd, odd, radius, F32).share == (0.0, 0.0, 0.0, 0.0)
    assert math.isinf(errors_of(np.array([1.0, np.inf, -np.inf, 1.0]), odd, radius, F32).share[-1])
    assert math.isinf(errors_of(np.array([np.nan, np.inf, np.inf, 1.0]), odd, radius, F32).share[-1])


def test_elements_without_a_finite_bound_are_counted_and_left_out() -> None:
    errors = errors_of(np.array([1.0, 5.0]), np.array([1.0, 2.0]), np.array([1e-6, np.inf]), F32)
    assert (errors.share[-1], errors.elements, errors.undetermined) == (0.0, 1, 1)


def test_one_unit_in_the_last_place_is_one() -> None:
    value = np.float32(1.5)
    following = float(np.nextafter(value, np.float32(2)))
    errors = errors_of(np.array([following]), np.array([1.5]), np.array([1.0]), F32)
    assert errors.ulp[-1] == 1.0
    assert errors.absolute[-1] == pytest.approx(2.0**-23)
    assert errors.relative[-1] == pytest.approx(2.0**-23 / 1.5)


def test_percentiles_are_values_that_occur() -> None:
    assert percentiles(np.arange(1.0, 101.0)) == (51.0, 91.0, 100.0, 100.0)
    assert percentiles(np.zeros(0)) == NO_ERRORS.share
    assert math.isinf(percentiles(np.array([np.nan]))[0])


def test_joining_takes_the_larger_of_both() -> None:
    one, other = honest(1), honest(2, scale=0.02)
    joined = join((one, other))
    assert joined.share == tuple(map(max, zip(one.share, other.share, strict=True)))
    assert join([]) == NO_ERRORS


def test_a_result_without_determined_elements_says_nothing() -> None:
    nothing = errors_of(np.array([5.0]), np.array([2.0]), np.array([math.inf]), F32)
    assert (nothing.elements, nothing.undetermined) == (0, 1)
    assert calibrated().judge(nothing).distance == 0.0


def test_errors_are_the_numbers_of_their_row() -> None:
    errors = honest(3)
    assert Errors.of(errors.row()) == errors
    assert join([honest(3), honest(4)]).row().tolist() == np.maximum(honest(3).row(), honest(4).row()).tolist()


def test_percentiles_are_those_of_numpy() -> None:
    values = np.random.default_rng(1).standard_normal(777)
    assert percentiles(values) == tuple(np.quantile(values, (0.5, 0.9, 0.99, 1.0), method="higher"))


def test_one_rounding_is_half_a_unit_in_the_last_place_and_leans_nowhere() -> None:
    reference, radius = np.array([1.0, -1.5, 0.0, np.inf]), np.array([1e-6, 1e-6, 0.0, 0.0])
    errors = rounding_errors(reference, radius, F32)
    assert errors.absolute[-1] == pytest.approx(1.5 * F32)
    assert errors.ulp[-1] <= 0.75
    assert errors.bias == 0.0
    moved = rounding_errors(reference, np.zeros(4), F32)
    assert moved.share == (0.0, 0.0, 0.0, 0.0)

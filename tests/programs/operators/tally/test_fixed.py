"""The fixed-point functions are close to what they are named after, exact where they say so, and never overflow."""

from __future__ import annotations

import math
import operator
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.programs.operators.tally.fixed_point import ONE, WEIGHT_ONE, exp2, gumbel, log2, uniform
from tallystick.programs.operators.values import Values
from tallystick.verdicts.sampling.filters import ARRAYS
from tests.support.array_libraries import library

RNG = np.random.default_rng(0)
KEYS = np.concatenate([-RNG.integers(0, 1 << 33, 2000), np.arange(-300, 1), -(1 << 31) + np.arange(-9, 9)])
NUMBERS = np.concatenate([RNG.integers(1, 1 << 62, 1000), RNG.integers(1, 1 << 34, 1000), np.arange(1, 300)])
WORDS = np.concatenate(
    [
        RNG.integers(-(1 << 63), (1 << 63) - 1, 2000),
        RNG.integers(0, 1 << 40, 300),
        np.array([0, -1, 1 << 62, -(1 << 63)]),
    ]
)


class Exact:
    """Python's integers, which refuse what an I64 cannot hold."""

    def add(self, x: int, y: int) -> int:
        return held(x + y)

    def sub(self, x: int, y: int) -> int:
        return held(x - y)

    def mul(self, x: int, y: int) -> int:
        return held(x * y)

    def shift_right(self, x: int, y: int) -> int:
        assert 0 <= y < 64
        return x >> y

    def compare(self, x: int, y: int, how: str) -> bool:
        return bool(getattr(operator, how)(x, y))

    def where(self, condition: bool, x: int, y: int) -> int:
        return x if condition else y


def held(number: int) -> int:
    assert -(1 << 63) <= number < 1 << 63
    return number


def noise_of(word: int) -> float:
    """−2³²·log₂(−log₂ u), in 40 digits."""
    with localcontext() as context:
        context.prec = 40
        u = 1 - Decimal(2 * ((word % 2**64) >> 12) + 1) / 2**53
        return float(-(-u.ln() / Decimal(2).ln()).ln() / Decimal(2).ln() * ONE)


def test_powers_are_within_2_to_the_minus_31() -> None:
    exact = np.exp2(KEYS / ONE)
    assert np.abs(exp2(ARRAYS, KEYS) / WEIGHT_ONE - exact).max() < 2.0**-31


def test_logarithms_are_within_4_units() -> None:
    assert np.abs(log2(ARRAYS, NUMBERS) - np.log2(NUMBERS.astype(np.float64)) * ONE).max() < 4


def test_noise_is_within_16_units_that_is_2_to_the_minus_28() -> None:
    exact = np.array([noise_of(int(word)) for word in WORDS])
    assert np.abs(gumbel(ARRAYS, WORDS) - exact).max() < 16


@pytest.mark.parametrize("places", range(63))
def test_a_power_of_two_has_its_exact_logarithm(places: int) -> None:
    assert log2(Exact(), 1 << places) == places * ONE


@pytest.mark.parametrize("octaves", range(41))
def test_a_whole_key_has_its_exact_weight(octaves: int) -> None:
    assert exp2(Exact(), -octaves * ONE) == WEIGHT_ONE >> octaves


def test_what_is_far_below_weighs_nothing() -> None:
    assert exp2(Exact(), -41 * ONE) == 0
    assert exp2(Exact(), -(1 << 62)) == 0


def test_a_lower_key_never_weighs_visibly_more() -> None:
    weights = exp2(ARRAYS, np.sort(KEYS))
    assert np.diff(weights).min() > -(2**9)
    assert weights.max() == WEIGHT_ONE


def test_a_uniform_number_lies_inside_of_its_interval_and_is_symmetric() -> None:
    assert [uniform(Exact(), word) for word in (0, (1 << 12) - 1, 1 << 12, -1)] == [1, 1, 3, 2**53 - 1]
    opposite = uniform(ARRAYS, ~WORDS)
    assert (uniform(ARRAYS, WORDS) + opposite == 2**53).all()


def test_noise_has_the_range_of_a_53_bit_number() -> None:
    assert gumbel(Exact(), 0) == pytest.approx((53 + math.log2(math.log(2))) * ONE, rel=1e-9)
    assert gumbel(Exact(), -1) == pytest.approx(-math.log2(53) * ONE, rel=1e-9)


@pytest.mark.parametrize(("function", "numbers"), [(exp2, KEYS), (log2, NUMBERS), (gumbel, WORDS)])
def test_no_intermediate_leaves_64_bits_and_every_library_gives_the_same(function: Any, numbers: Any) -> None:
    expected = [function(Exact(), int(number)) for number in numbers]
    assert function(ARRAYS, numbers).tolist() == expected
    for name in ("numpy", "torch"):
        algebra = Values(library(name))
        found = function(algebra, algebra.load(Tensor.of(numbers)))
        assert algebra.library.storage(found.array).tolist() == expected

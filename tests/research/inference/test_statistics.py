from __future__ import annotations

import numpy as np
import pytest

from research.inference.statistics import area, area_with_interval, curve

HONEST = np.array([[0.0, 1.0], [2.0, 3.0]])


@pytest.mark.parametrize(
    ("cheated", "expected"),
    [([[4.0, 5.0]], 1.0), ([[-1.0, -2.0]], 0.0), ([[0.0, 1.0], [2.0, 3.0]], 0.5), ([[1.5, 1.5]], 0.5), ([[2.5]], 0.75)],
)
def test_the_area_is_the_share_of_pairs_in_order(cheated: list[list[float]], expected: float) -> None:
    assert area(HONEST.ravel(), np.array(cheated).ravel()) == expected


def test_a_score_that_is_no_number_counts_as_the_largest() -> None:
    assert area(HONEST.ravel(), np.array([np.nan])) == 1.0


def test_an_area_of_one_is_no_surer_than_its_answers_allow() -> None:
    found = area_with_interval(HONEST, HONEST + 10)
    assert (found.value, found.high, found.honest) == (1.0, 1.0, 2)
    assert found.low == pytest.approx(0.025 ** (1 / 2))


def test_the_interval_holds_the_area() -> None:
    generator = np.random.default_rng(1)
    found = area_with_interval(generator.normal(size=(40, 4)), generator.normal(1.0, size=(40, 4)))
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(0.76, abs=0.05)


def test_the_curve_goes_from_nothing_refused_to_everything() -> None:
    false, true = curve(HONEST, HONEST + 1)
    assert (false[0], true[0], false[-1], true[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (np.diff(false) >= 0).all()
    assert (true >= false).all()

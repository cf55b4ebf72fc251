"""What a sample excludes, beside the definition: C(n − b, k) / C(n, k) below 5 %."""

from __future__ import annotations

from math import comb

import pytest

from tallystick.verdicts.words import excluded_from


@pytest.mark.parametrize("total", [1, 2, 6, 19, 20, 59, 120])
def test_the_bound_is_the_exact_one_of_the_hypergeometric_distribution(total: int) -> None:
    for drawn in range(total + 1):
        excluded = [bad for bad in range(1, total + 1) if 20 * comb(total - bad, drawn) < comb(total, drawn)]
        assert excluded_from(total, drawn) == min(excluded, default=total + 1)


def test_all_drawn_excludes_one_and_none_drawn_excludes_nothing() -> None:
    assert (excluded_from(32, 32), excluded_from(32, 0)) == (1, 33)


def test_more_confidence_excludes_less_and_large_runs_cost_nothing() -> None:
    assert excluded_from(10**8, 10**6, 0.99) > excluded_from(10**8, 10**6) == 299  # the rule of three: 3 / 1 %

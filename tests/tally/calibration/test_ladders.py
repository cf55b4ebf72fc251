"""How small a cheat still shows is a statement about counts, and counts carry intervals."""

from __future__ import annotations

import pytest

from tallystick.tally.calibration.cheats import LADDERS, Rate, smallest_shown


def rate(size: float, caught: int, tried: int) -> Rate:
    return Rate(size, caught, tried, {})


@pytest.mark.parametrize(
    ("caught", "tried", "share", "shown"),
    [
        (59, 59, 0.95, True),
        (58, 58, 0.95, False),
        (299, 299, 0.99, True),
        (298, 298, 0.99, False),
        (60, 61, 0.95, False),
    ],
)
def test_a_share_is_shown_only_by_enough_trials(caught: int, tried: int, share: float, shown: bool) -> None:
    assert rate(1, caught, tried).shows(share) is shown


def test_the_smallest_size_is_the_first_that_shows_its_share() -> None:
    rates = (rate(1e-5, 3, 20), rate(1e-4, 296, 300), rate(1e-3, 300, 300))
    assert [smallest_shown(rates, share) for share in (0.95, 0.99)] == [*rates[1:]]
    assert smallest_shown([rate(1.0, 5, 10)], 0.95) is None


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    low, high = rate(1, 300, 300).interval
    assert (round(low, 3), high) == (0.988, 1.0)


def test_every_ladder_ascends() -> None:
    assert all(list(sizes) == sorted(set(sizes)) for sizes in LADDERS.values())

"""Ranges and their children, for every width and around every power of two (row D-16)."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from tallystick.disputes.game.state import LEAVES_MAX, WAYS_MAX, bounds, child, cut_places, rounds

WAYS = range(2, WAYS_MAX + 1)
SIZES = sorted({1, 2, 3, *(2**k + d for k in range(1, 33) for d in (-1, 0, 1) if 2**k + d <= LEAVES_MAX)})


@pytest.mark.parametrize("ways", WAYS)
def test_children_cover_a_range_without_gap_or_overlap_and_differ_by_one_leaf_at_most(ways: int) -> None:
    for size in SIZES:
        for low in (0, 7, LEAVES_MAX - size):
            ends = bounds(low, low + size, ways)
            widths = [high - before for before, high in pairwise(ends)]
            assert (ends[0], ends[-1]) == (low, low + size)
            assert len(widths) == min(ways, size)
            assert min(widths) >= 1
            assert max(widths) - min(widths) <= 1
            assert cut_places(low, low + size, ways) == tuple(end - 1 for end in ends[1:-1])
            assert [child(low, low + size, ways, each) for each in range(len(widths))] == list(pairwise(ends))


@pytest.mark.parametrize("ways", WAYS)
def test_as_many_rounds_are_needed_as_the_logarithm_says(ways: int) -> None:
    for size in SIZES:
        needed = rounds(size, ways)
        assert ways**needed >= size
        assert needed == 0 or ways ** (needed - 1) < size
    assert rounds(LEAVES_MAX, ways) == math.ceil(math.log(LEAVES_MAX, ways) - 1e-9)


@pytest.mark.parametrize("ways", WAYS)
def test_whichever_child_is_chosen_no_more_rounds_are_needed(ways: int) -> None:
    for size in SIZES:
        for pick in (0, -1, "largest"):
            low, high, found = 0, size, 0
            while high - low > 1:
                children = list(pairwise(bounds(low, high, ways)))
                low, high = max(children, key=lambda c: c[1] - c[0]) if pick == "largest" else children[int(pick)]
                found += 1
            assert found <= rounds(size, ways)
            assert found == rounds(size, ways) or pick != "largest"


def test_a_single_leaf_has_no_cut() -> None:
    assert cut_places(5, 6, 2) == ()
    assert bounds(5, 6, 32) == (5, 6)
    assert rounds(1, 2) == 0


def test_numbers_that_others_can_check() -> None:
    assert bounds(0, 10, 4) == (0, 2, 5, 7, 10)
    assert bounds(3, 6, 16) == (3, 4, 5, 6)
    assert bounds(0, 1000, 16)[:4] == (0, 62, 125, 187)
    assert [rounds(size, 2) for size in (1, 2, 3, 4, 5, 8, 9, 1000)] == [0, 1, 2, 2, 3, 3, 4, 10]


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**32), st.integers(2, 32))
def test_every_leaf_is_in_exactly_one_child(low: int, size: int, ways: int) -> None:
    high = min(low + size, LEAVES_MAX)
    ends = bounds(low, high, ways)
    leaf = low + (high - low) * 2 // 3 if high - low > 1 else low
    assert sum(begin <= leaf < end for begin, end in pairwise(ends)) == 1

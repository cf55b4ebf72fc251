"""Which steps are looked at: repeatable with the nonce, uniform without it."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.audits.policy import (
    Segment,
    detection_probability,
    draw_nonce,
    parse_nonce,
    sample_steps,
    select_segments,
    unreachable_share,
)
from tallystick.core.digests import digest
from tallystick.core.errors import UsageError

CLAIM = digest("claim", b"one")


def nonce(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_the_sample_follows_from_nonce_and_claim_alone() -> None:
    chosen = sample_steps(nonce(1), CLAIM, 1000, 20)
    assert chosen == sample_steps(nonce(1), CLAIM, 1000, 20)
    assert chosen != sample_steps(nonce(2), CLAIM, 1000, 20)
    assert chosen != sample_steps(nonce(1), digest("claim", b"two"), 1000, 20)


@given(st.integers(1, 400), st.integers(1, 500), st.integers(0, 2**64))
@settings(deadline=None, max_examples=60)
def test_sampled_steps_are_distinct_and_lie_in_the_run(steps: int, count: int, number: int) -> None:
    chosen = sample_steps(nonce(number), CLAIM, steps, count)
    assert len(chosen) == len(set(chosen)) == min(steps, count)
    assert all(1 <= step <= steps for step in chosen)


def test_every_step_is_sampled_equally_often() -> None:
    draws, steps, count = 2000, 20, 5
    seen = [0] * (steps + 1)
    for number in range(draws):
        for step in sample_steps(nonce(number), CLAIM, steps, count):
            seen[step] += 1
    expected = draws * count / steps
    chi_square = sum((times - expected) ** 2 / expected for times in seen[1:])
    assert chi_square < 50.8  # the 0.9999 quantile with 19 degrees of freedom; the draws are fixed


@given(st.integers(1, 60), st.integers(0, 70), st.floats(0, 1))
@settings(deadline=None, max_examples=100)
def test_the_detection_probability_is_that_of_the_hypergeometric_distribution(
    steps: int, sampled: int, share: float
) -> None:
    import math

    bad, drawn = math.ceil(share * steps), min(sampled, steps)
    expected = 1 - comb(steps - bad, drawn) / comb(steps, drawn)
    assert detection_probability(steps, sampled, share) == pytest.approx(expected, abs=1e-12)


def test_a_sample_of_nothing_detects_nothing_and_a_full_one_everything() -> None:
    assert detection_probability(100, 0, 0.1) == 0.0
    assert detection_probability(100, 100, 0.01) == 1.0
    assert detection_probability(0, 0, 0.1) == 0.0


def test_nonces_are_drawn_afresh_and_read_back_from_hexadecimal() -> None:
    assert draw_nonce() != draw_nonce()
    assert parse_nonce(nonce(7).hex()) == nonce(7)


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 33, "0" * 63, "№" * 64])
def test_a_nonce_of_another_length_or_alphabet_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--nonce"):
        parse_nonce(text)


def test_a_sampled_step_is_replayed_from_its_anchor_up_to_the_next() -> None:
    chosen = select_segments([3, 4, 9], [0, 4, 8, 12], window=4)
    assert chosen.segments == (Segment(0, 4, True), Segment(8, 12, True))
    assert chosen.out_of_reach == ()


def test_a_window_shorter_than_the_stride_replays_summaries_only_and_reports_what_it_cannot_reach() -> None:
    chosen = select_segments([1, 3, 4, 7], [0, 10, 20], window=3)
    assert chosen.segments == (Segment(0, 3, False),)
    assert chosen.out_of_reach == (4, 7)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True),
    st.sets(st.integers(1, 39)),
    st.integers(1, 45),
)
@settings(deadline=None, max_examples=200)
def test_every_sampled_step_is_either_replayed_within_the_window_or_out_of_reach(
    sampled: list[int], marks: set[int], window: int
) -> None:
    anchors = {0, 40} | marks
    chosen = select_segments(sampled, anchors, window)
    for segment in chosen.segments:
        assert segment.start in anchors
        assert segment.steps <= window
        assert segment.reaches_anchor == (segment.end in anchors)
    covered = {s for s in sampled if any(g.start < s <= g.end for g in chosen.segments)}
    assert covered | set(chosen.out_of_reach) == set(sampled)
    assert not covered & set(chosen.out_of_reach)
    for step in chosen.out_of_reach:
        assert step - max(mark for mark in anchors if mark < step) > window


def test_the_unreachable_share_counts_the_steps_beyond_the_window_of_every_anchor() -> None:
    assert unreachable_share([0, 10, 20], 20, window=10) == 0.0
    assert unreachable_share([0, 10, 20], 20, window=4) == 12 / 20
    assert unreachable_share([0], 0, window=4) == 0.0

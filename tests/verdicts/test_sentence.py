"""One sentence for a report: coverage, result, and what the sample excludes, for runs of every size."""

from __future__ import annotations

import re

import pytest

from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Verdict, VerdictCoverage
from tallystick.verdicts.words import sentence_of

GOOD, BAD = Finding(0.0, 0.0, "state"), Finding(1.0, 0.0, "state")
HOW = "replayed from the step graph"


def accepted(done: int, total: int, drawn: int | None, unit: str = "steps") -> str:
    return sentence_of(Verdict((GOOD,), coverage=VerdictCoverage(done, total, unit, HOW, drawn, "bit for bit")))


def test_a_sample_says_what_it_excludes_and_at_which_confidence() -> None:
    assert accepted(70, 120, 8) == (
        "70 of 120 steps were replayed from the step graph, and all agreed bit for bit. "
        "8 of them were drawn at random: with 95 % confidence fewer than 37 of the other 50 are bad."
    )


@pytest.mark.parametrize("drawn", [1, 16, 32])
def test_where_every_step_was_replayed_no_percentage_is_printed(drawn: int) -> None:
    assert accepted(32, 32, drawn) == "All 32 steps were replayed from the step graph, and all agreed bit for bit."


def test_tiny_runs_get_sensible_words() -> None:
    assert accepted(1, 1, 1) == "The 1 step was replayed from the step graph, and all agreed bit for bit."
    assert accepted(1, 2, 1).endswith(" It was drawn at random, too few to say anything about the other 1.")
    assert accepted(8, 12, 2).endswith(" 2 of them were drawn at random, too few to say anything about the other 4.")
    assert accepted(4, 12, 1).endswith(" 1 of them was drawn at random, too few to say anything about the other 8.")
    assert accepted(2, 12, 2).endswith(
        " They were drawn at random: with 95 % confidence fewer than 9 of the other 10 are bad."
    )


@pytest.mark.parametrize("total", [2, 5, 12, 64, 1000])
def test_no_sentence_speaks_of_more_bad_steps_than_were_left_out(total: int) -> None:
    for done in range(1, total, max(1, total // 20)):
        for drawn in range(1, done + 1, max(1, done // 5)):
            found = re.search(r"fewer than ([\d,]+) of the other ([\d,]+) are bad", accepted(done, total, drawn))
            if found is not None:
                bound, rest = (int(each.replace(",", "")) for each in found.groups())
                assert (bound <= rest, rest) == (True, total - done)


def test_of_a_chosen_segment_nothing_follows_for_the_others() -> None:
    assert accepted(4, 12, 0).endswith(" Nothing follows for the other 8.")
    assert accepted(4, 12, None).endswith(" agreed bit for bit.")  # a ruling says itself what it may have missed


def test_rejected_and_inconclusive_say_how_much_and_promise_nothing() -> None:
    coverage = VerdictCoverage(70, 1200, "steps", HOW, 8)
    assert sentence_of(Verdict((GOOD, BAD), coverage=coverage)) == (
        "70 of 1,200 steps were replayed from the step graph, and 1 of 2 comparisons disagrees."
    )
    assert sentence_of(Verdict((GOOD,), ("a", "b"), coverage=coverage)) == (
        "70 of 1,200 steps were replayed from the step graph, and 2 points could not be checked."
    )
    none = VerdictCoverage(0, 12, "steps", HOW, 0)
    assert sentence_of(Verdict((GOOD,), ("other stack",), coverage=none)) == (
        "None of 12 steps were replayed, and 1 point could not be checked."
    )
    assert sentence_of(Verdict((BAD,), coverage=none)) == (
        "None of 12 steps counts as replayed, and 1 of 1 comparison disagrees."
    )

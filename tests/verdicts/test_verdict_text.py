"""A verdict as text: what a reader needs first stands first."""

from __future__ import annotations

from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Verdict, VerdictCoverage
from tallystick.verdicts.words import OBJECTIONS_SHOWN, CheckCost, VerdictText

AGREES = Finding(0.5, 2.0, "loss", "step 3")
EQUAL = Finding(0.0, 0.0, "claim")
DIFFERS = Finding(4.0, 2.0, "loss", "step 4", "too far")
ADVICE = Finding(9.0, 1.0, "profile", advisory=True)
ALL = VerdictCoverage(3, 3, "steps", "replayed from the step graph", 2, "bit for bit")


def test_the_verdict_comes_first_in_one_sentence_and_what_passed_in_one_line() -> None:
    verdict = Verdict((EQUAL, AGREES, ADVICE), not_checked=("step 9",), assumptions=("SHA-256",), coverage=ALL)
    seconds = {"start-up": 1.25, "replay": 0.04}
    assert VerdictText(verdict, "claim c", ("a reason",), ("repeat: tally",), seconds=seconds).lines() == [
        "ACCEPTED  All 3 steps were replayed from the step graph, and all agreed bit for bit.",
        "claim c",
        "a reason",
        "not checked: step 9",
        "2 checks passed (2 comparisons); -v shows each",
        "seconds: 1.2 start-up, 0.0 replay",
        "repeat: tally",
    ]


def test_an_objection_stands_before_what_was_not_checked() -> None:
    verdict = Verdict((EQUAL, AGREES, DIFFERS), ("graph: missing",), ("step 9",))
    assert VerdictText(verdict, "claim c").lines(verbose=True)[:6] == [
        "REJECTED  3 comparisons were made, and 1 of 3 comparisons disagrees.",
        "claim c",
        "objection: loss at step 4 (4 of 2): too far",
        "could not check: graph: missing",
        "not checked: step 9",
        "1 of 2 checks passed (2 of 3 comparisons)",
    ]


def test_every_check_is_shown_with_what_it_cost() -> None:
    verdict = Verdict((EQUAL, AGREES, DIFFERS, ADVICE), ("states: gone",), assumptions=("SHA-256",))
    costs = {"loss": CheckCost(64, 0.25), "prefill": CheckCost(0, 1.5)}
    text = VerdictText(verdict, "receipt r", costs=costs, open_checks=frozenset({"states"}), details=("rung 1",))
    assert [line.split() for line in text.lines(verbose=True)[5:]] == [
        ["check", "verdict", "n", "agree", "largest", "distance", "allowed", "bytes", "seconds"],
        ["claim", "yes", "1", "1", "0", "0"],
        ["loss", "no", "2", "1", "4", "2", "64", "0.2500"],
        ["profile", "advisory", "1", "0", "9", "1"],
        ["states", "open"],
        ["prefill", "0", "1.5000"],
        ["rung", "1"],
        ["assumed:", "SHA-256"],
    ]


def test_nothing_checked_is_inconclusive_and_says_so() -> None:
    assert VerdictText(Verdict(()), "claim c").lines() == [
        "INCONCLUSIVE  0 comparisons were made, and nothing was compared.",
        "claim c",
        "no check passed; -v shows each",
    ]


def test_many_objections_are_cut_and_hostile_text_is_harmless() -> None:
    lines = VerdictText(Verdict((DIFFERS,) * (OBJECTIONS_SHOWN + 3)), "claim \x1b[2J").lines()
    assert lines[1] == "claim \ufffd[2J"
    assert "… and 3 more; --json lists all of them" in lines

"""Three outcomes, and what leads to each."""

from __future__ import annotations

import json
from dataclasses import asdict

from hypothesis import given, strategies as st

from tallystick.core.canonical_json import encode
from tallystick.core.errors import ProofError
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import EXIT_CODES, Findings, Verdict, VerdictCoverage, require

AGREES, DIFFERS = Finding(0.0, 0.0, "a"), Finding(2.0, 1.0, "b")
HINT = Finding(9.0, 1.0, "c", advisory=True)
FINDINGS = st.lists(st.sampled_from([AGREES, DIFFERS, HINT, Finding(float("nan"), 1.0, "n")]), max_size=5)


def test_nothing_checked_is_inconclusive() -> None:
    assert Verdict(()).outcome == "inconclusive"
    assert Verdict((HINT,)).outcome == "inconclusive"


def test_agreement_without_anything_missing_is_accepted() -> None:
    assert Verdict((AGREES,)).outcome == "accepted"
    assert Verdict((AGREES, HINT)).outcome == "accepted"


def test_agreement_with_something_missing_is_inconclusive() -> None:
    assert Verdict((AGREES,), unavailable=("no device",)).outcome == "inconclusive"


def test_one_disagreement_rejects_whatever_else_there_is() -> None:
    assert Verdict((AGREES, DIFFERS), unavailable=("no device",)).outcome == "rejected"
    assert Verdict((AGREES, DIFFERS)).objections == (DIFFERS,)


def test_what_was_not_checked_by_choice_does_not_change_the_outcome() -> None:
    assert Verdict((AGREES,), not_checked=("most steps",)).outcome == "accepted"


@given(FINDINGS, st.booleans())
def test_an_advisory_finding_never_decides(findings: list[Finding], missing: bool) -> None:
    unavailable = ("something",) if missing else ()
    decisive = tuple(finding for finding in findings if not finding.advisory)
    assert Verdict(tuple(findings), unavailable).outcome == Verdict(decisive, unavailable).outcome


@given(FINDINGS)
def test_a_verdict_is_json_whatever_was_found(findings: list[Finding]) -> None:
    assert encode(Verdict(tuple(findings)).to_json())


def test_a_distance_that_is_no_number_disagrees_and_is_written_as_text() -> None:
    verdict = Verdict((Finding(float("nan"), 1.0), Finding(float("inf"), 1.0), Finding(0.0, float("-inf"))))
    assert len(verdict.objections) == 3
    told = verdict.to_json()["findings"]
    assert [(f["distance"], f["allowed"]) for f in told] == [("nan", 1.0), ("inf", 1.0), (0.0, "-inf")]  # type: ignore[index,union-attr,call-overload]


def test_the_exit_codes_are_those_of_the_outcomes() -> None:
    assert EXIT_CODES == {"accepted": 0, "rejected": 1, "inconclusive": 3}
    assert Verdict((AGREES,)).exit_code == 0


def test_a_check_that_raises_becomes_a_disagreement_with_its_reason() -> None:
    findings = Findings()
    with findings.check("root", "transcript"):
        require(False, "another root")
    with findings.check("size"):
        require(True, "never said")
    assert [(f.name, f.where, f.detail, f.agrees) for f in findings.seen] == [
        ("root", "transcript", "another root", False),
        ("size", "", "", True),
    ]
    assert findings.rejected


def test_other_errors_than_a_failed_proof_travel_through_a_check() -> None:
    import pytest

    findings = Findings()
    with pytest.raises(ValueError, match="ours"), findings.check("root"):
        raise ValueError("ours")
    with findings.check("again"):
        raise ProofError("theirs")
    assert [finding.name for finding in findings.seen] == ["again"]


def test_an_advisory_note_does_not_reject() -> None:
    findings = Findings()
    findings.note(DIFFERS, "profile", advisory=True)
    assert not findings.rejected


def test_a_verdict_is_true_if_accepted_and_says_in_one_line_what_it_is() -> None:
    coverage = VerdictCoverage(1, 3, "steps", "replayed")
    accepted, rejected, open_ = Verdict((AGREES,), coverage=coverage), Verdict((DIFFERS,)), Verdict(())
    assert [(bool(each), each.accepted) for each in (accepted, rejected, open_)] == [
        (True, True),
        (False, False),
        (False, False),
    ]
    assert repr(accepted) == "<Verdict accepted: 1 of 3 steps replayed>"
    assert repr(rejected) == "<Verdict rejected: 1 comparisons>"
    assert json.loads(encode(accepted.to_json()))["coverage"] == asdict(coverage)

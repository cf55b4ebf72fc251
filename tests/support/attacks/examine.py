"""Auditing a forged run in every way there is, to compare what is said with what was expected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tallystick.audits.opening import gather_evidence
from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.audits.screens import screen_anchors
from tallystick.audits.training import audit_training
from tallystick.core.digests import Digest
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.catalogue import Audit, Expected
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.verdict import Findings, Outcome, Verdict


@dataclass(frozen=True)
class Answer:
    """What one audit said: its outcome, the checks that objected, and the first thing that it could not check."""

    outcome: Outcome
    checks: tuple[str, ...] = ()
    detail: str = ""
    bad_segments: tuple[tuple[int, int], ...] = ()

    def meets(self, expected: Expected) -> bool:
        """Whether this is the expected answer, every expected check included."""
        return self.outcome == expected.outcome and set(expected.checks) <= set(self.checks)


def examine(run: Path, audit: Audit, policy: Policy, kept: Digest, nonce: bytes, stack: VerifierStack) -> Answer:
    """Ask one audit about a run; `policy` holds what all audits share, `kept` is the digest of the honest claim."""
    if audit == "screens":
        return of_verdict(screen(RunDirectory(run), policy))
    asked = policy_of(audit, policy, kept)
    return of_report(audit_training(RunDirectory(run), asked, nonce, stack))


def policy_of(audit: Audit, policy: Policy, kept: Digest) -> Policy:
    """The policy of one audit."""
    changes: dict[Audit, dict[str, object]] = {
        "recipe": {"replay": "recipe"},
        "full": {"full": True},
        "claim": {"claim": kept},
        "tolerant": {"mode": "tolerant"},
    }
    return policy.model_copy(update=changes.get(audit, {}))


def screen(run: RunDirectory, policy: Policy) -> Verdict:
    """All that can be said about a run without taking a single step."""
    evidence = gather_evidence(run, policy, Findings(keeps_going=True))
    screen_anchors(evidence)
    return Verdict(tuple(evidence.findings.seen), tuple(evidence.findings.open_lines))


def of_report(report: Report) -> Answer:
    """The answer of a report, with the chosen segments that did not replay, or not to the same end."""
    good = {r.segment for r in report.segments if r.trajectory_agrees and r.state_agrees}
    bad = (segment for segment in report.selection.segments if segment not in good)
    return of_verdict(report.verdict, tuple((segment.start, segment.end) for segment in bad))


def of_verdict(verdict: Verdict, bad_segments: Iterable[tuple[int, int]] = ()) -> Answer:
    """The answer of a verdict."""
    checks = tuple(dict.fromkeys(finding.name for finding in verdict.objections))
    detail = verdict.unavailable[0] if verdict.unavailable else ""
    return Answer(verdict.outcome, checks, detail, tuple(bad_segments))

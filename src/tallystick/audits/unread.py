"""The report on a run of which claim, spec or environment cannot be read: nothing else in it has a meaning then."""

from __future__ import annotations

from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.audits.sampling import Selection
from tallystick.commitments.digests import Digest, digest
from tallystick.errors import UnavailableError
from tallystick.judging.findings import Findings
from tallystick.judging.verdict import Verdict, VerdictCoverage
from tallystick.store.run import RunDirectory


def report_unread(run: RunDirectory, policy: Policy, findings: Findings) -> Report:
    """The report on a run of which `read_stated` could not read all, and said why in `findings`."""
    verdict = Verdict(
        tuple(findings.seen),
        tuple(findings.undecided),
        ("data, records, anchors and steps: without claim, spec and environment they say nothing",),
        coverage=VerdictCoverage(0, 0, "steps", "replayed"),
    )
    return Report(verdict, _claimed(run), policy, b"", Selection((), (), ()), (), 0, 0.0, 0.0, 0.0, 0.0)


def _claimed(run: RunDirectory) -> Digest | None:
    """The digest of the claim's bytes, whatever they hold."""
    try:
        return digest("claim", run.claim_bytes())
    except UnavailableError:
        return None

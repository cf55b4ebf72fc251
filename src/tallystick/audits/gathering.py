"""Reads and checks a run without an audit: for whoever inspects it, or argues about it."""

from __future__ import annotations

from collections import deque

from tallystick.audits.checked_run import CheckedRun, check_records, read_stated, walk_anchors
from tallystick.audits.policy import Policy
from tallystick.errors import ProofError
from tallystick.judging.findings import Findings
from tallystick.store.run import RunDirectory


def gather_evidence(run: RunDirectory, policy: Policy, findings: Findings | None = None) -> CheckedRun:
    """Read a run and check all of it, anchors included; what fails is in the findings.

    Raises, unless given `findings` keep going:
        MalformedError: a file has no form that is known here.
        UnavailableError: a file is missing or larger than the policy allows.
    """
    evidence = read_run(run, policy, findings)
    deque(walk_anchors(evidence, policy), maxlen=0)
    return evidence


def read_run(run: RunDirectory, policy: Policy, findings: Findings | None = None) -> CheckedRun:
    """As `gather_evidence`, without opening the anchors; raises `ProofError` where nothing can be read."""
    findings = Findings() if findings is None else findings
    stated = read_stated(run, policy, findings)
    if stated is None:
        objections = [finding.detail for finding in findings.seen if not finding.agrees]
        raise ProofError((objections + findings.undecided)[0])
    return check_records(run, stated, policy, findings)

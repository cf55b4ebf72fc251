"""Read a folder as evidence: every digest in it is rechecked, or `ProofError` is raised."""

from __future__ import annotations

from collections import deque
from typing import overload

from tallystick.audits.checked_run import CheckedRun, walk_anchors
from tallystick.audits.gathering import read_run
from tallystick.audits.inference import Calls, gather_calls
from tallystick.audits.policy import Policy
from tallystick.errors import ProofError
from tallystick.judging.findings import Findings
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory
from tallystick.store.segment import SegmentDirectory


@overload
def gather_whole(folder: RunDirectory) -> CheckedRun: ...
@overload
def gather_whole(folder: InferenceDirectory) -> Calls: ...
def gather_whole(folder: RunDirectory | InferenceDirectory) -> CheckedRun | Calls:
    """All of a training run or of recorded calls; raises `ProofError` with the first check that fails.

    The weights, inputs and outputs of calls are read later, on first use.
    """
    if isinstance(folder, InferenceDirectory):
        calls = gather_calls(folder, Policy())
        require_agreement(str(folder.path), calls.findings)
        return calls
    evidence = gather_records(folder)
    check_anchors(evidence)
    return evidence


def gather_records(run: RunDirectory) -> CheckedRun:
    """As `gather_whole`, but without the anchors: each anchor is rechecked when its state is read."""
    evidence = read_run(run, Policy())
    require_agreement(str(run.path), evidence.findings)
    return evidence


def gather_segment(segment: SegmentDirectory) -> CheckedRun:
    """As `gather_records`, of a segment that was handed over alone."""
    from tallystick.audits.opened_segment import read_segment  # with all that audits it, which a referee does not need

    findings = Findings()
    read = read_segment(segment, Policy(), findings)
    require_agreement(str(segment.path), findings)
    assert read is not None  # what cannot be read is raised, or among the findings
    return read[0]


def check_anchors(evidence: CheckedRun) -> None:
    """Read every anchor; raise `ProofError` for the first that is not the recorded one, or not the final state."""
    deque(walk_anchors(evidence, Policy()), maxlen=0)
    require_agreement(str(evidence.run.path), evidence.findings)


def require_agreement(path: str, findings: Findings) -> None:
    """Raise `ProofError` with the first finding that disagrees."""
    bad = next((finding for finding in findings.seen if not finding.agrees), None)
    if bad is not None:
        raise ProofError(f"{path}: {bad.name}: {bad.detail}")

"""The replay of a segment that somebody chose, instead of sampled ones."""

from __future__ import annotations

import time

from tallystick.audits.checked_run import check_records, read_stated
from tallystick.audits.end_of_chain import leave_end_out
from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.audits.sampling import Selection
from tallystick.audits.training import Progress, audit_selected, leave_origin_out, segments_between
from tallystick.audits.unread import report_unread
from tallystick.errors import UsageError
from tallystick.judging.findings import Findings
from tallystick.store.run import RunDirectory
from tallystick.workloads.verifier_stack import VerifierStack


def verify_segment(
    run: RunDirectory,
    policy: Policy,
    start: int,
    end: int,
    stack: VerifierStack,
    progress: Progress = lambda *_: None,
) -> Report:
    """Replay the segment between two anchors and ask for equality of every bit of the state.

    Reports what `audit_training` does; raises `UsageError` where `start` or `end` is no anchor.
    """
    started = time.perf_counter()
    findings = Findings(keeps_going=True)
    stated = read_stated(run, policy, findings)
    if stated is None:
        return report_unread(run, policy, findings)
    evidence = check_records(run, stated, policy, findings)
    marks = sorted(evidence.anchors)
    if evidence.findings.rejected or not evidence.ends_as_claimed:
        return audit_selected(evidence, policy, b"", stack, progress, Selection((), (), ()), started)
    if start not in marks or end not in marks or start >= end:
        near = ", ".join(str(mark) for mark in marks[:12])
        raise UsageError(f"--from {start} --to {end}: two anchors in ascending order are needed ({near} …)")
    evidence.begins = start
    leave_origin_out(evidence, stack)
    if end < marks[-1]:
        leave_end_out(evidence, policy.model_copy(update={"full": True}))
    chosen = Selection(tuple(range(start + 1, end + 1)), tuple(segments_between(marks, start, end)), ())
    return audit_selected(evidence, policy, b"", stack, progress, chosen, started)

"""`tallystick.verify_segment`: replay one segment that the caller chose."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tallystick.api.audit_result import AuditResult, unread_result
from tallystick.api.replaying import PolicySource, RunSource, path_of, policy_of, verifier_stack
from tallystick.api.threads import threads_of
from tallystick.errors import UsageError
from tallystick.judging.findings import Findings
from tallystick.presentation.circumstances import circumstances_of, segment_command
from tallystick.store.run import RunDirectory
from tallystick.store.statement import read_statement

if TYPE_CHECKING:
    from tallystick.audits.training import Progress


def verify_segment(
    run: RunSource,
    start: int,
    end: int,
    policy: PolicySource = None,
    *,
    device: str | None = None,
    progress: Progress = lambda *_: None,
) -> AuditResult:
    """Replay the segment from the anchor `start` to the anchor `end`, and ask for equality of every bit of the state.

    Raises what `audit` raises, and `UsageError` where `start` or `end` is no anchor.
    """
    from tallystick.audits.checked_run import read_stated
    from tallystick.audits.chosen_segment import verify_segment as replay_chosen

    started = time.perf_counter()
    directory, asked = read_statement(path_of(run)), policy_of(policy)
    if not isinstance(directory, RunDirectory):
        raise UsageError(f"{directory.path}: holds no training run, and only such a run has segments")
    command = segment_command(directory.path, asked, start, end, device)
    findings = Findings(keeps_going=True)
    stated = read_stated(directory, asked, findings)
    if stated is None:
        return unread_result(directory, asked, findings, command)
    with threads_of(stated.environment):
        stack = verifier_stack(directory, device, asked)
        progress(0, 0)
        ready = time.perf_counter()
        report = replay_chosen(directory, asked, start, end, stack, progress)
    return AuditResult(report, circumstances_of(directory, command, stack.environment, ready - started))

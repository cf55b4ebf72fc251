"""`tallystick.verify_segment` and `open_segment`: one segment that the caller chose, replayed or handed over."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tallystick.api.audit_result import AuditResult, unread_result
from tallystick.api.replaying import (
    PolicySource,
    RunSource,
    origin_of,
    path_of,
    policy_of,
    verifier_stack,
    with_origin,
)
from tallystick.api.threads import threads_of
from tallystick.errors import UsageError
from tallystick.judging.findings import Findings
from tallystick.presentation.circumstances import circumstances_of, opened_segment_command, segment_command
from tallystick.store.run import RunDirectory
from tallystick.store.statement import read_statement

if TYPE_CHECKING:
    from pathlib import Path

    from tallystick.audits.policy import Policy
    from tallystick.audits.training import Progress
    from tallystick.store.segment import SegmentDirectory
    from tallystick.workloads.origin import Origin


def verify_segment(
    run: RunSource,
    start: int,
    end: int,
    policy: PolicySource = None,
    *,
    device: str | None = None,
    initial: Path | str | None = None,
    anchors: str | None = None,
    progress: Progress = lambda *_: None,
) -> AuditResult:
    """Replay the segment from the anchor `start` to the anchor `end`, and ask for equality of every bit of the state.

    With `initial`, a segment from anchor 0 is to begin with the weights of this directory; another says that it does
    not show them.

    Raises what `audit` raises, and `UsageError` where `start` or `end` is no anchor.
    """
    from tallystick.audits.checked_run import read_stated
    from tallystick.audits.chosen_segment import verify_segment as replay_chosen

    started = time.perf_counter()
    directory, asked = read_statement(path_of(run)), policy_of(policy)
    if not isinstance(directory, RunDirectory):
        raise UsageError(f"{directory.path}: holds no training run, and only such a run has segments")
    directory = replace(directory, anchors_url=anchors)
    directory.anchors.present(())  # a store that cannot be read is said at once
    origin = origin_of(initial)
    command = segment_command(
        directory.path, asked, start, end, device, anchors, None if origin is None else origin.path
    )
    findings = Findings(keeps_going=True)
    stated = read_stated(directory, asked, findings)
    if stated is None:
        return unread_result(directory, asked, findings, command)
    with threads_of(stated.environment):
        stack = with_origin(verifier_stack(directory, device, asked), origin, None)
        progress(0, 0)
        ready = time.perf_counter()
        report = replay_chosen(directory, asked, start, end, stack, progress)
    return AuditResult(report, circumstances_of(directory, command, stack.environment, ready - started))


def audit_segment(
    path: Path,
    policy: Policy,
    device: str | None,
    progress: Progress,
    started: float,
    corpus: Path | None = None,
    origin: Origin | None = None,
) -> AuditResult:
    """Audit a segment that was handed over alone; `started` is when that began, by `time.perf_counter`.

    Raises `UsageError` where a corpus is given and the segment is not one of a run on rows.
    """
    from tallystick.audits.checked_run import read_stated
    from tallystick.audits.opened_segment import audit_opened_segment
    from tallystick.store.segment import SegmentDirectory

    segment = SegmentDirectory(path)
    begun = None if origin is None else origin.path
    findings = Findings(keeps_going=True)
    command = opened_segment_command(segment.path, policy, device, corpus, begun)
    stated = read_stated(segment.run, policy, findings)
    if stated is None:
        return unread_result(segment.run, policy, findings, command)
    if corpus is not None and stated.spec.rows is None:
        raise UsageError(f"{path}: shows its tokens under the root of the spec; --corpus takes the whole run")
    with threads_of(stated.environment):
        stack = with_origin(verifier_stack(segment.run, device, policy), origin, corpus)
        progress(0, 0)
        ready = time.perf_counter()
        report = audit_opened_segment(segment, policy, stack, progress)
    return AuditResult(report, circumstances_of(segment.run, command, stack.environment, ready - started))


def open_segment(
    run: RunSource, start: int, end: int, out: Path | str, *, anchors: str | None = None
) -> SegmentDirectory:
    """Write the segment from the anchor `start` to the anchor `end` into `out`, so that it can be audited alone.

    Args:
        run: the directory of a finished run.
        start: the step after which the first anchor was written.
        end: the step after which the second one was written.
        out: a directory that is empty or not there.
        anchors: where anchors are that the run directory lacks, as a URL that fsspec knows.

    Raises:
        ProofError: the run is not the one that its claim is about.
        UnavailableError: a file of the run is missing, or `out` cannot be written.
        UsageError: `start` or `end` is no anchor, or `out` is not empty.
    """
    from pathlib import Path

    from tallystick.documents.targets import require_empty_folder
    from tallystick.recorders.segment_opening import open_segment as write_segment

    found = read_statement(path_of(run))
    if not isinstance(found, RunDirectory):
        raise UsageError(f"{found.path}: holds no training run, and only such a run has segments")
    require_empty_folder(Path(out))
    return write_segment(replace(found, anchors_url=anchors), start, end, Path(out))

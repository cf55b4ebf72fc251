"""`tallystick.audit`: replay what was recorded, compare, and give the verdict."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tallystick.api.audit_result import AuditResult, unread_result
from tallystick.api.replaying import (
    PolicySource,
    RunSource,
    directory_of,
    origin_of,
    path_of,
    policy_of,
    verifier_stack,
    with_origin,
)
from tallystick.api.threads import threads_of
from tallystick.audits.sampling import draw_nonce, parse_nonce
from tallystick.errors import UsageError
from tallystick.judging.findings import Findings
from tallystick.presentation.circumstances import audit_command, circumstances_of
from tallystick.store.inference import InferenceDirectory
from tallystick.store.statement import SEGMENT, OpeningDirectory, read_statement

if TYPE_CHECKING:
    from tallystick.audits.training import Progress


def audit(
    run: RunSource,
    policy: PolicySource = None,
    *,
    nonce: bytes | str | None = None,
    device: str | None = None,
    corpus: Path | str | None = None,
    initial: Path | str | None = None,
    anchors: str | None = None,
    progress: Progress = lambda *_: None,
) -> AuditResult:
    """Recheck every digest of a run, replay sampled steps and compare; likewise the recorded calls of a model.

    Args:
        run: the directory of a finished run, or of a segment that was opened of one; the latter is replayed whole.
        policy: what the verifier asks, or its file as TOML or JSON; by default 16 steps are sampled.
        nonce: 32 bytes, or 64 hexadecimal digits, to repeat an audit; by default they are drawn.
        device: replay on `cpu` or `cuda`; by default on the device that the run names.
        corpus: the directory of the shards that the run was trained on, some of which are hashed and tokenized again.
            With a segment, the shards of its rows.
        initial: the directory of the weights that the run is to begin with: a model directory, or an earlier run.
            A segment that begins later says that it does not show them.
        anchors: where anchors are that the run directory lacks, as a URL that fsspec knows.
        progress: called with the steps replayed so far, and with how many there are to replay; first with 0 and 0,
            before digests are rechecked.

    Whatever is wrong with the run is in the verdict.

    Raises:
        MalformedError: the policy is not what it should be.
        UnavailableError: there is no run, corpus or origin, or a library is missing, or the device that was asked for.
        UsageError: the nonce or the device makes no sense.
    """
    started = time.perf_counter()
    drawn = draw_nonce() if nonce is None else parse_nonce(nonce.hex() if isinstance(nonce, bytes) else nonce)
    asked, path = policy_of(policy), path_of(run)
    if (path / SEGMENT).is_file():
        from tallystick.api.segment import audit_segment

        if anchors is not None:
            raise UsageError(f"{path}: a segment holds its anchors: leave --anchors out")
        return audit_segment(path, asked, device, progress, started, directory_of(corpus), origin_of(initial))
    found = read_statement(path)
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"{found.path}: holds opened operators; `tally judge {quote(str(found.path))}` judges them")
    if isinstance(found, InferenceDirectory):
        from tallystick.api.recorded_calls import audit_calls

        return audit_calls(found, asked, drawn, device, progress, started)
    from tallystick.audits.checked_run import read_stated
    from tallystick.audits.training import audit_training

    found = replace(found, anchors_url=anchors)
    found.anchors.present(())  # a store that cannot be read is said at once
    findings = Findings(keeps_going=True)
    stated = read_stated(found, asked, findings)
    shards, origin = directory_of(corpus), origin_of(initial)
    command = audit_command(found.path, asked, drawn, device, shards, anchors, None if origin is None else origin.path)
    if stated is None:
        return unread_result(found, asked, findings, command)
    with threads_of(stated.environment):
        stack = replace(with_origin(verifier_stack(found, device, asked), origin, shards), corpus=shards)
        progress(0, 0)
        ready = time.perf_counter()
        report = audit_training(found, asked, drawn, stack, progress)
    return AuditResult(report, circumstances_of(found, command, stack.environment, ready - started))

"""`tallystick.audit_over_http`: the audit of a run in a service, which is fetched and then judged here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from tallystick.audits import training as training_audit
from tallystick.core.errors import ProofError, UsageError, without_passwords
from tallystick.core.lazy import require
from tallystick.database import query as queries, remote
from tallystick.tally import database
from tallystick.tally.auditing import AuditResult, PolicySource, audit


def audit_over_http(
    url: str,
    policy: PolicySource = None,
    *,
    token: str | None = None,
    segment: tuple[int, int] | None = None,
    step: int | None = None,
    nonce: bytes | str | None = None,
    device: str | None = None,
    corpus: Path | str | None = None,
    initial: Path | str | None = None,
    progress: training_audit.Progress = lambda *_: None,
) -> AuditResult:
    """Fetch a run, or one segment of it, from a service into a temporary folder, and audit it there.

    Nothing that the service says is believed: every digest and proof is recomputed from the files that came.

    Args:
        url: the run, as `http://HOST/runs/NAME`.
        policy: what the verifier asks; its claim is what ties the files to what was published.
        token: the token that the operator of the service gave, where one is needed.
        segment: audit only the steps from one anchor to another, which are fetched alone.
        step: audit only the segment in which this step lies.
        nonce: as `audit` takes it.
        device: as `audit` takes it.
        corpus: as `audit` takes it.
        initial: as `audit` takes it.
        progress: as `audit` takes it.

    Raises what `audit` raises, and `UnavailableError` where the service does not answer or refuses.
    """
    require("httpx", "fastapi")
    place, run = remote.run_address(url)
    if segment is not None and step is not None:
        raise UsageError("a segment, or a step: not both")
    with remote.ServiceConnection(place, token) as service, TemporaryDirectory(prefix="tally-audit-") as folder:
        fetched = Path(folder) / "run"
        marks = segment if step is None else _segment_of(place, token, run, step)
        part = _fetch(service, run, fetched, marks)
        result = audit(fetched, policy, nonce=nonce, device=device, corpus=corpus, initial=initial, progress=progress)
    command = result.made.command.replace(quote(str(fetched)), f"{quote(without_passwords(url))}{part}", 1)
    command += " --token-file FILE" * (token is not None)
    return replace(result, made=replace(result.made, command=command))


def _fetch(service: remote.ServiceConnection, run: str, target: Path, segment: tuple[int, int] | None) -> str:
    """Fetch what is asked for; returns the option that asks for it."""
    if segment is None:
        remote.fetch_run(service, run, target)
        return ""
    remote.fetch_segment(service, run, *segment, target)
    return f" --segment {segment[0]}..{segment[1]}"


def _segment_of(url: str, token: str | None, run: str, step: int) -> tuple[int, int]:
    """The anchors around a step, as the service names them; the audit shows whether they are anchors."""
    with database.open(url, token=token) as service:
        anchors = service.anchors.where(run=run, present=True)
        before = list(anchors.where(step=queries.below(step)).newest_first().first(1))
        behind = list(anchors.where(step=queries.at_least(step)).first(1))
    if not before or not behind:
        raise UsageError(f"--step {step}: no two anchors of the run lie around it")
    start, end = before[0].step, behind[0].step
    if not start < step <= end:
        raise ProofError(f"{url}: the service names the anchors {start} and {end} around step {step}")
    return start, end

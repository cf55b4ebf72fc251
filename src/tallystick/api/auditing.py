"""`tallystick.audit` and `tallystick.verify_segment`: replay what was recorded, compare, and give the verdict."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.api.threads import threads_of
from tallystick.audits.policy import Policy, read_policy
from tallystick.audits.report import Report, claim_named
from tallystick.audits.sampling import draw_nonce, parse_nonce
from tallystick.commitments.encoding import Json
from tallystick.errors import UsageError
from tallystick.judging.findings import Findings
from tallystick.judging.verdict import Judgement, Outcome, Verdict
from tallystick.presentation.circumstances import (
    Circumstances,
    audit_command,
    circumstances_of,
    segment_command,
    stated_environment,
)
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory
from tallystick.store.statement import OpeningDirectory, read_statement
from tallystick.tolerances.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.audits.inference import InferenceReport
    from tallystick.audits.training import Progress
    from tallystick.presentation.verdict_text import VerdictText
    from tallystick.transcripts.environment import Environment
    from tallystick.workloads.verifier_stack import VerifierStack

RunSource = RunDirectory | InferenceDirectory | Path | str
PolicySource = Policy | Path | str | None


@dataclass(frozen=True, repr=False)
class AuditResult(Judgement):
    """The verdict of an audit; `print` shows the text of `tally audit`, and a notebook the page of `--html`.

    It is true if accepted, and false if rejected or inconclusive, which `outcome` tells apart. `report` holds
    everything that was found: the nonce, the sample, each replayed segment and what it cost; `made` says when, with
    which tools and on which stacks.
    """

    report: Report | InferenceReport
    made: Circumstances

    @property
    def verdict(self) -> Verdict:
        """The verdict with its findings, and with what was not checked."""
        return self.report.verdict

    @property
    def outcome(self) -> Outcome:
        """`"accepted"`, `"rejected"` or `"inconclusive"`."""
        return self.verdict.outcome

    @property
    def gist(self) -> str:
        """How much was replayed, and of which claim."""
        return f"{self.verdict.gist}, {claim_named(self.report.claim)[:21]}…"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every comparison, in the order in which they were made."""
        return self.verdict.findings

    @property
    def objections(self) -> tuple[Finding, ...]:
        """The findings that decide, and disagree."""
        return self.verdict.objections

    def to_json(self) -> dict[str, Json]:
        """The report as `tally audit --json` prints it."""
        from tallystick.presentation.audit_json import audit_json

        return audit_json(self.report, self.made)

    def text(self, verbose: bool = False) -> str:
        """The report as `tally audit` prints it; with `verbose`, every check."""
        return "\n".join(self.lines().lines(verbose))

    def page(self) -> str:
        """The report as one self-contained page of HTML, as `tally audit --html` writes it."""
        from tallystick.presentation.page import render_page

        return render_page(self.report, self.made)

    def lines(self) -> VerdictText:
        """What the text says, by its parts."""
        from tallystick.presentation.audit_text import audit_text

        return audit_text(self.report, self.made)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from tallystick.presentation.page import frame

        return frame(self.page())


def audit(
    run: RunSource,
    policy: PolicySource = None,
    *,
    nonce: bytes | str | None = None,
    device: str | None = None,
    progress: Progress = lambda *_: None,
) -> AuditResult:
    """Recheck every digest of a run, replay sampled steps and compare; likewise the recorded calls of a model.

    Args:
        run: the directory of a finished run.
        policy: what the verifier asks, or its file as TOML or JSON; by default 16 steps are sampled.
        nonce: 32 bytes, or 64 hexadecimal digits, to repeat an audit; by default they are drawn.
        device: replay on `cpu` or `cuda`; by default on the device that the run names.
        progress: called with the steps replayed so far, and with how many there are to replay; first with 0 and 0,
            before digests are rechecked.

    Whatever is wrong with the run is in the verdict.

    Raises:
        MalformedError: the policy is not what it should be.
        UnavailableError: there is no run, or a library is missing, or the device that was asked for.
        UsageError: the nonce or the device makes no sense.
    """
    started = time.perf_counter()
    drawn = draw_nonce() if nonce is None else parse_nonce(nonce.hex() if isinstance(nonce, bytes) else nonce)
    asked, found = _policy(policy), read_statement(_path(run))
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"{found.path}: holds opened operators; `tally judge {found.path}` judges them")
    if isinstance(found, InferenceDirectory):
        return _audit_calls(found, asked, drawn, device, progress, started)
    from tallystick.audits.checked_run import read_stated
    from tallystick.audits.training import audit_training

    findings = Findings(keeps_going=True)
    stated = read_stated(found, asked, findings)
    command = audit_command(found.path, asked, drawn, device)
    if stated is None:
        return _unread(found, asked, findings, command)
    with threads_of(stated.environment):
        stack = verifier_stack(found, device, asked)
        progress(0, 0)
        ready = time.perf_counter()
        report = audit_training(found, asked, drawn, stack, progress)
    return AuditResult(report, circumstances_of(found, command, stack.environment, ready - started))


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
    from tallystick.audits.training import verify_segment as verify_training_segment

    started = time.perf_counter()
    directory, asked = read_statement(_path(run)), _policy(policy)
    if not isinstance(directory, RunDirectory):
        raise UsageError(f"{directory.path}: holds no training run, and only such a run has segments")
    command = segment_command(directory.path, asked, start, end, device)
    findings = Findings(keeps_going=True)
    stated = read_stated(directory, asked, findings)
    if stated is None:
        return _unread(directory, asked, findings, command)
    with threads_of(stated.environment):
        stack = verifier_stack(directory, device, asked)
        progress(0, 0)
        ready = time.perf_counter()
        report = verify_training_segment(directory, asked, start, end, stack, progress)
    return AuditResult(report, circumstances_of(directory, command, stack.environment, ready - started))


def _unread(run: RunDirectory, policy: Policy, findings: Findings, command: str) -> AuditResult:
    from tallystick.audits.unread import report_unread

    return AuditResult(report_unread(run, policy, findings), circumstances_of(run, command, None, 0.0))


def verifier_stack(run: RunDirectory, device: str | None, policy: Policy) -> VerifierStack:
    """This machine as it replays `run`; raises what `replay_device` raises."""
    from tallystick.frameworks.torch.training.verifier_stack import torch_verifier_stack

    stated = run.environment()
    return torch_verifier_stack(stated, replay_device(device, stated), policy.parameters_max)


def replay_device(device: str | None, stated: Environment | None) -> str:
    """Where to replay: on `device`, or on the one that was stated, if it is here.

    Raises `UsageError` for a device of no known kind, `UnavailableError` for one that was asked for and is not here.
    """
    import torch

    if device is not None:
        from tallystick.frameworks.torch.device import require_device

        require_device(device)
    return device or (stated.device if stated is not None and torch.cuda.is_available() else "cpu")


def _path(run: RunSource) -> Path:
    return Path(run) if isinstance(run, str | Path) else run.path


def _policy(policy: PolicySource) -> Policy:
    if policy is None:
        return Policy()
    return policy if isinstance(policy, Policy) else read_policy(Path(policy))


def _audit_calls(
    run: InferenceDirectory, policy: Policy, nonce: bytes, device: str | None, progress: Progress, started: float
) -> AuditResult:
    from tallystick.audits.inference import audit_inference
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.frameworks.torch.environment import describe_environment

    if policy.tolerance is not None:
        raise UsageError("the policy's tolerance compares states of a training; calls are compared by their outputs")
    stated = stated_environment(run)
    on = replay_device(device, stated)
    progress(0, 0)
    with threads_of(stated):
        environment = describe_environment("cuda" if on == "cuda" else "cpu")
        ready = time.perf_counter()
        report = audit_inference(run, policy, nonce, environment, TorchEngine(on), progress)
    command = audit_command(run.path, policy, nonce, device)
    return AuditResult(report, circumstances_of(run, command, environment, ready - started))

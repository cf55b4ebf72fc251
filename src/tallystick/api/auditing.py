"""`tallystick.audit` and `tallystick.verify_segment`: replay what was recorded, compare, and give the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.api.threads import threads_of
from tallystick.api.verdict_text import VerdictText
from tallystick.audits.policy import Policy, read_policy
from tallystick.audits.report import Report
from tallystick.audits.sampling import draw_nonce, parse_nonce
from tallystick.commitments.encoding import Json
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.judging.findings import Findings
from tallystick.judging.verdict import Outcome, Verdict
from tallystick.store.folders import RUN, require_folder
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory
from tallystick.store.statement import OpeningDirectory, read_statement
from tallystick.tolerances.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.audits.inference import InferenceReport
    from tallystick.audits.training import Progress
    from tallystick.commitments.digests import Digest
    from tallystick.transcripts.environment import Environment
    from tallystick.workloads.verifier_stack import VerifierStack

RunSource = RunDirectory | InferenceDirectory | Path | str
PolicySource = Policy | Path | str | None


@dataclass(frozen=True)
class AuditResult:
    """The verdict of an audit; `print` shows the text of `tally audit`, and a notebook the page of `--html`.

    `report` holds everything: the nonce, the sample, each replayed segment and what it cost.
    """

    report: Report | InferenceReport

    @property
    def verdict(self) -> Verdict:
        """The verdict with its findings, and with what was not checked."""
        return self.report.verdict

    @property
    def outcome(self) -> Outcome:
        """`"accepted"`, `"rejected"` or `"inconclusive"`."""
        return self.verdict.outcome

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every comparison, in the order in which they were made."""
        return self.verdict.findings

    @property
    def objections(self) -> tuple[Finding, ...]:
        """The findings that decide, and disagree."""
        return self.verdict.objections

    def to_json(self) -> Json:
        """The report as `tally audit --json` prints it."""
        return self.report.to_json()

    def text(self, verbose: bool = False) -> str:
        """The report as `tally audit` prints it; with `verbose`, every check."""
        return "\n".join(report_text(self.report).lines(verbose))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from tallystick.api.page import render_page

        return render_page(self.report)


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
        UnavailableError: there is no run, or a library is missing.
        UsageError: the nonce or the device makes no sense.
    """
    drawn = draw_nonce() if nonce is None else parse_nonce(nonce.hex() if isinstance(nonce, bytes) else nonce)
    asked, found = _policy(policy), read_statement(_path(run))
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"{found.path}: holds opened operators; `tally judge {found.path}` judges them")
    if isinstance(found, InferenceDirectory):
        return _audit_calls(found, asked, drawn, device, progress)
    from tallystick.audits.training import audit_training
    from tallystick.audits.unread import open_stated

    stated = open_stated(found, asked, Findings(keeps_going=True))
    if isinstance(stated, Report):
        return AuditResult(stated)
    with threads_of(stated.environment):
        stack = verifier_stack(found, device, asked)
        progress(0, 0)
        return AuditResult(audit_training(found, asked, drawn, stack, progress))


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
    from tallystick.audits.training import verify_segment as verify_training_segment
    from tallystick.audits.unread import open_stated

    directory, asked = RunDirectory(require_folder(_path(run), RUN)), _policy(policy)
    stated = open_stated(directory, asked, Findings(keeps_going=True))
    if isinstance(stated, Report):
        return AuditResult(stated)
    with threads_of(stated.environment):
        stack = verifier_stack(directory, device, asked)
        progress(0, 0)
        return AuditResult(verify_training_segment(directory, asked, start, end, stack, progress))


def verifier_stack(run: RunDirectory, device: str | None, policy: Policy) -> VerifierStack:
    """This machine as it replays `run`; raises `UsageError` for an unknown device."""
    from tallystick.frameworks.torch.training.verifier_stack import torch_verifier_stack

    stated = run.environment()
    return torch_verifier_stack(stated, replay_device(device, stated), policy.parameters_max)


def replay_device(device: str | None, stated: Environment | None) -> str:
    """Where to replay: on `device`, or on the one that was stated, if it is here; raises `UsageError`."""
    import torch

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    return device or (stated.device if stated is not None and torch.cuda.is_available() else "cpu")


def report_text(report: Report | InferenceReport) -> VerdictText:
    """What a report says in lines of text."""
    if not isinstance(report, Report):
        replayed = f"replayed graph {report.graph} on {len(report.replayed)} of {report.calls} calls"
        return VerdictText(report.verdict, _subject(report.claim), (replayed,), _repeat(report.nonce))
    reasons = [f"replayed {report.replayed_steps} of {report.steps} steps with {report.replayed}"]
    if report.segments and report.replayed_steps < report.steps:
        reasons.append(f"chance that the sample of {len(report.selection.sampled)} held a bad step: {_chances(report)}")
    subject = _subject(report.claim)
    return VerdictText(report.verdict, subject, tuple(reasons), _repeat(report.nonce), tuple(_details(report)))


def _path(run: RunSource) -> Path:
    return Path(run) if isinstance(run, str | Path) else run.path


def _policy(policy: PolicySource) -> Policy:
    if policy is None:
        return Policy()
    return policy if isinstance(policy, Policy) else read_policy(Path(policy))


def _audit_calls(
    run: InferenceDirectory, policy: Policy, nonce: bytes, device: str | None, progress: Progress
) -> AuditResult:
    from tallystick.audits.inference import audit_inference
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.frameworks.torch.environment import describe_environment

    if policy.tolerance is not None:
        raise UsageError("the policy's tolerance compares states of a training; calls are compared by their outputs")
    stated = _stated_environment(run)
    on = replay_device(device, stated)
    progress(0, 0)
    with threads_of(stated):
        environment = describe_environment("cuda" if on == "cuda" else "cpu")
        return AuditResult(audit_inference(run, policy, nonce, environment, TorchEngine(on), progress))


def _subject(claim: Digest | None) -> str:
    return "no claim" if claim is None else f"claim {claim}"


def _stated_environment(run: InferenceDirectory) -> Environment | None:
    """The environment that the prover states; `None` where the audit has to say what is wrong with it."""
    try:
        return run.environment()
    except (MalformedError, UnavailableError):
        return None


def _repeat(nonce: bytes) -> tuple[str, ...]:
    return (f"repeat with --nonce {nonce.hex()}",) if nonce else ()


def _details(report: Report) -> Iterator[str]:
    ratio = "an unknown share" if report.cost_ratio is None else f"{report.cost_ratio:.2f}"
    if report.segments:
        trajectories = sum(segment.trajectory_agrees for segment in report.segments)
        states = sum(segment.state_agrees for segment in report.segments)
        yield f"of {len(report.segments)} segments the trajectory agrees in {trajectories}, the state in {states}"
    yield f"the audit took {ratio} of the training time"


def _chances(report: Report) -> str:
    chances = report.detection().items()
    return ", ".join(
        f"{100 * chance:.0f} % if {100 * float(share):g} % of the steps were bad" for share, chance in chances
    )

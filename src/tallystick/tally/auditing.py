"""`tallystick.audit`, `open_segment` and `verify_segment`: replay what was recorded, compare, and give the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Final

from tallystick.audits import opened_segment, report_page, training as training_audit
from tallystick.audits.calls import audit_inference
from tallystick.audits.checked_run import read_stated
from tallystick.audits.context import (
    AuditContext,
    audit_command,
    context_of,
    opened_segment_command,
    segment_command,
    stated_environment,
)
from tallystick.audits.policy import Policy, draw_nonce, parse_nonce, read_policy
from tallystick.audits.report import Report, claim_named, report_unread
from tallystick.core.canonical_json import Json
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.files import require_empty_folder
from tallystick.engines import tokenizers
from tallystick.engines.torch import engine as torch_engine, environment as torch_environment, tensors as torch_tensors
from tallystick.engines.torch.training import verifier_stack as torch_stack
from tallystick.formats.spec import Environment, Origin
from tallystick.formats.store.directories import (
    SEGMENT,
    InferenceDirectory,
    OpeningDirectory,
    SegmentDirectory,
    open_origin,
    read_statement,
)
from tallystick.formats.store.run import RunDirectory
from tallystick.recording import segment_opening
from tallystick.verdicts import words
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import Findings, Judgement, Outcome, Verdict

# How many threads PyTorch computes with while a verifier works.

THREADS_MAX: Final = 256


@contextmanager
def threads_of(stated: Environment | None) -> Iterator[None]:
    """As many threads as an environment states, if there is one: a matter of speed, and of the last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if stated is None else min(stated.threads, THREADS_MAX))
    try:
        yield
    finally:
        torch.set_num_threads(before)


# What every audit begins with: the run, the policy, and this machine as it replays.

RunSource = RunDirectory | InferenceDirectory | Path | str
PolicySource = Policy | Path | str | None


def path_of(run: RunSource) -> Path:
    """The directory of a run, however it is given."""
    return Path(run) if isinstance(run, str | Path) else run.path


def policy_of(policy: PolicySource) -> Policy:
    """A policy, however it is given; raises `MalformedError` and `UnavailableError` for a file."""
    if policy is None:
        return Policy()
    return policy if isinstance(policy, Policy) else read_policy(Path(policy))


def directory_of(corpus: Path | str | None) -> Path | None:
    """The directory of shards, however it is given; raises `UnavailableError` where it is not there."""
    if corpus is not None and not Path(corpus).is_dir():
        raise UnavailableError(f"{corpus}: no such directory of shards")
    return None if corpus is None else Path(corpus)


def origin_of(initial: Path | str | None) -> Origin | None:
    """The weights of a directory; raises `UnavailableError` where it holds none."""
    return None if initial is None else open_origin(Path(initial))


def with_origin(stack: VerifierStack, origin: Origin | None, corpus: Path | None) -> VerifierStack:
    """The stack of a verifier who has these weights and, with shards too, makes rows of conversations again."""
    if origin is None or corpus is None:
        return replace(stack, origin=origin)
    check = partial(tokenizers.check_made_again, corpus=corpus, model=origin.path)
    return replace(stack, origin=origin, made_again=check)


def replay_device(device: str | None, stated: Environment | None) -> str:
    """Where to replay: on `device`, or on the one that was stated, if it is here.

    Raises `UsageError` for a device of no known kind, `UnavailableError` for one that was asked for and is not here.
    """
    import torch

    if device is not None:
        torch_tensors.require_device(device)
    return device or (stated.device if stated is not None and torch.cuda.is_available() else "cpu")


# `tallystick.AuditResult`: the verdict of an audit with its report, as text, page and JSON.


@dataclass(frozen=True, repr=False)
class AuditResult(Judgement):
    """The verdict of an audit; `print` shows the text of `tally audit`, and a notebook the page of `--html`.

    It is true if accepted, and false if rejected or inconclusive, which `outcome` tells apart. `report` holds
    everything that was found: the nonce, the sample, each replayed segment and what it cost; `made` says when, with
    which tools and on which stacks.
    """

    report: Report
    made: AuditContext

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
        return report_page.audit_json(self.report, self.made)

    def text(self, verbose: bool = False) -> str:
        """The report as `tally audit` prints it; with `verbose`, every check."""
        return "\n".join(self.lines().lines(verbose))

    def page(self) -> str:
        """The report as one self-contained page of HTML, as `tally audit --html` writes it."""
        return report_page.render_page(self.report, self.made)

    def lines(self) -> words.VerdictText:
        """What the text says, by its parts."""
        return report_page.audit_text(self.report, self.made)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return report_page.frame(self.page())


@dataclass(frozen=True)
class ReplaySettings:
    """How this machine replays: where, with what weights and shards at hand, and since when, for the report."""

    device: str | None
    progress: training_audit.Progress
    origin: Origin | None = None
    corpus: Path | None = None
    started: float = field(default_factory=time.perf_counter)

    def judge(
        self, run: RunDirectory, policy: Policy, command: str, replay: Callable[[VerifierStack], Report]
    ) -> AuditResult:
        """The result of a replay, or the one for a run of which claim, spec or environment cannot be read."""
        findings = Findings(keeps_going=True)
        stated = read_stated(run, policy, findings)
        if stated is None:
            return AuditResult(report_unread(run, policy, findings), context_of(run, command, None, 0.0))
        with threads_of(stated.environment):
            device = replay_device(self.device, stated.environment)
            machine = torch_stack.torch_verifier_stack(stated.environment, device, policy.parameters_max)
            stack = with_origin(machine, self.origin, self.corpus)
            self.progress(0, 0)
            startup_seconds = time.perf_counter() - self.started
            report = replay(stack)
        return AuditResult(report, context_of(run, command, stack.environment, startup_seconds))


# `tallystick.verify_segment` and `open_segment`: one segment that the caller chose, replayed or handed over.


def verify_segment(
    run: RunSource,
    start: int,
    end: int,
    policy: PolicySource = None,
    *,
    device: str | None = None,
    initial: Path | str | None = None,
    anchors: str | None = None,
    progress: training_audit.Progress = lambda *_: None,
) -> AuditResult:
    """Replay the segment from the anchor `start` to the anchor `end`, and ask for equality of every bit of the state.

    With `initial`, a segment from anchor 0 is to begin with the weights of this directory; another says that it does
    not show them.

    Raises what `audit` raises, and `UsageError` where `start` or `end` is no anchor.
    """
    settings = ReplaySettings(device, progress, origin_of(initial))
    directory, asked = read_statement(path_of(run)), policy_of(policy)
    if not isinstance(directory, RunDirectory):
        raise UsageError(f"{directory.path}: holds no training run, and only such a run has segments")
    chosen = replace(directory, anchors_url=anchors)
    chosen.anchors.present(())  # a store that cannot be read is said at once
    begun = None if settings.origin is None else settings.origin.path
    command = segment_command(chosen.path, asked, start, end, device, anchors, begun)
    return settings.judge(
        chosen,
        asked,
        command,
        lambda stack: training_audit.verify_segment(chosen, asked, start, end, stack, progress),
    )


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
    directory = read_statement(path_of(run))
    if not isinstance(directory, RunDirectory):
        raise UsageError(f"{directory.path}: holds no training run, and only such a run has segments")
    require_empty_folder(Path(out))
    return segment_opening.open_segment(replace(directory, anchors_url=anchors), start, end, Path(out))


# `tallystick.audit`: replay what was recorded, compare, and give the verdict.


def audit(
    run: RunSource,
    policy: PolicySource = None,
    *,
    nonce: bytes | str | None = None,
    device: str | None = None,
    corpus: Path | str | None = None,
    initial: Path | str | None = None,
    anchors: str | None = None,
    progress: training_audit.Progress = lambda *_: None,
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
    settings = ReplaySettings(device, progress)
    drawn = draw_nonce() if nonce is None else parse_nonce(nonce.hex() if isinstance(nonce, bytes) else nonce)
    asked, path = policy_of(policy), path_of(run)
    is_segment = (path / SEGMENT).is_file()
    if is_segment and anchors is not None:
        raise UsageError(f"{path}: a segment holds its anchors: leave --anchors out")
    found = None if is_segment else read_statement(path)
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"{found.path}: holds opened operators; `tally judge {quote(str(found.path))}` judges them")
    if isinstance(found, InferenceDirectory):
        return _audit_calls(found, asked, drawn, settings)
    shards, origin = directory_of(corpus), origin_of(initial)
    begun = None if origin is None else origin.path
    settings = replace(settings, origin=origin, corpus=shards)
    if found is None:
        segment = SegmentDirectory(path)
        command = opened_segment_command(path, asked, device, shards, begun)
        return settings.judge(
            segment.run,
            asked,
            command,
            lambda stack: _audit_segment(segment, asked, stack, settings),
        )
    whole = replace(found, anchors_url=anchors)
    whole.anchors.present(())  # a store that cannot be read is said at once
    command = audit_command(path, asked, drawn, device, shards, anchors, begun)
    return settings.judge(
        whole,
        asked,
        command,
        lambda stack: training_audit.audit_training(whole, asked, drawn, replace(stack, corpus=shards), progress),
    )


def _audit_segment(segment: SegmentDirectory, policy: Policy, stack: VerifierStack, settings: ReplaySettings) -> Report:
    """Replay a segment that was handed over alone; raises `UsageError` for a corpus that it has no rows of."""
    if settings.corpus is not None and segment.run.spec().rows is None:
        raise UsageError(f"{segment.path}: shows its tokens under the root of the spec; --corpus takes the whole run")
    return opened_segment.audit_opened_segment(segment, policy, stack, settings.progress)


def _audit_calls(run: InferenceDirectory, policy: Policy, nonce: bytes, settings: ReplaySettings) -> AuditResult:
    """Run the graph of recorded calls again, and compare outputs."""
    if policy.tolerance is not None:
        raise UsageError("the policy's tolerance compares states of a training; calls are compared by their outputs")
    stated = stated_environment(run)
    device = replay_device(settings.device, stated)
    settings.progress(0, 0)
    with threads_of(stated):
        environment = torch_environment.describe_environment("cuda" if device == "cuda" else "cpu")
        startup_seconds = time.perf_counter() - settings.started
        engine = torch_engine.TorchEngine(device)
        report = audit_inference(run, policy, nonce, environment, engine, settings.progress)
    command = audit_command(run.path, policy, nonce, settings.device)
    return AuditResult(report, context_of(run, command, environment, startup_seconds))

"""The audit of a training run: recheck, sample, replay, compare."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from tallystick.audits.calibration import shipped_calibration
from tallystick.audits.evidence import Evidence, gather_evidence
from tallystick.audits.initial import judge_initial_state
from tallystick.audits.policy import Policy
from tallystick.audits.replay import SegmentReport, replay_segment
from tallystick.audits.sampling import (
    Segment,
    Selection,
    detection_probability,
    sample_steps,
    select_segments,
    unreachable_share,
)
from tallystick.audits.screens import screen_anchors
from tallystick.audits.tolerant import TolerantJudge
from tallystick.audits.verdict import Verdict, number
from tallystick.commitments import Digest, Json
from tallystick.datasets import BatchPlan, Dataset, verify_data
from tallystick.errors import UnavailableError, UsageError
from tallystick.store import RunDirectory
from tallystick.transcripts import Environment, Replayer, Spec

MakeReplayer = Callable[[Spec, Dataset, BatchPlan], Replayer]
Progress = Callable[[int, int], None]
CLOCK_LEAST = 1e-6
"""Seconds: the resolution of a timeline."""

BAD_SHARES = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Workplace:
    """The verifier's own machine: its environment and how it builds a replayer."""

    environment: Environment
    replayer: MakeReplayer


@dataclass(frozen=True)
class Report:
    """A verdict with everything a reader needs to judge it or to repeat it."""

    verdict: Verdict
    claim: Digest
    policy: Policy
    nonce: bytes
    selection: Selection
    segments: tuple[SegmentReport, ...]
    steps: int
    unreachable: float
    training_seconds: float
    audit_seconds: float

    @property
    def replayed_steps(self) -> int:
        """How many steps the verifier took again."""
        return sum(report.segment.steps for report in self.segments)

    @property
    def cost_ratio(self) -> float | None:
        """Audit time over the training time that the prover's clock states, or `None` where that says nothing."""
        if not CLOCK_LEAST <= self.training_seconds < math.inf:
            return None
        return self.audit_seconds / self.training_seconds

    def detection(self) -> dict[str, float]:
        """Chance that the replayed sample holds a bad step, by the share of bad steps."""
        lost = set(self.selection.out_of_reach)
        covered = len([step for step in self.selection.sampled if step not in lost]) if self.segments else 0
        return {f"{share:g}": detection_probability(self.steps, covered, share) for share in BAD_SHARES}

    def to_json(self) -> Json:
        """The report as JSON values."""
        return {
            **self.verdict.to_json(),
            "claim": str(self.claim),
            "policy": self.policy.to_json(),
            "nonce": self.nonce.hex(),
            "steps": self.steps,
            "sampled": list(self.selection.sampled),
            "replayed_steps": self.replayed_steps,
            "segments": [segment.to_json() for segment in self.segments],
            "unreachable_share": self.unreachable,
            "detection": dict(self.detection()),
            "training_seconds": number(round(self.training_seconds, 3)),
            "audit_seconds": round(self.audit_seconds, 3),
            "cost_ratio": None if self.cost_ratio is None else round(self.cost_ratio, 4),
        }


def audit_training(
    run: RunDirectory,
    policy: Policy,
    nonce: bytes,
    workplace: Workplace,
    progress: Progress = lambda *_: None,
) -> Report:
    """Audit a finished run under `policy` with a nonce drawn after its claim.

    Raises:
        MalformedError: a file of the run is not what it should be.
        UnavailableError: a file is missing or larger than the policy allows.
    """
    evidence = gather_evidence(run, policy)
    select = every_segment if policy.full else sampled_segments
    return _audit(evidence, policy, nonce, workplace, progress, select(evidence, policy, nonce))


def verify_segment(
    run: RunDirectory,
    policy: Policy,
    start: int,
    end: int,
    workplace: Workplace,
    progress: Progress = lambda *_: None,
) -> Report:
    """Replay the segment between two anchors and ask for equality of every bit of the state.

    Raises what `audit_training` raises, and `UsageError` where `start` or `end` is no anchor.
    """
    evidence = gather_evidence(run, policy)
    marks = sorted(evidence.anchors)
    if evidence.findings.rejected:
        return _audit(evidence, policy, b"", workplace, progress, Selection((), (), ()))
    if start not in marks or end not in marks or start >= end:
        near = ", ".join(str(mark) for mark in marks[:12])
        raise UsageError(f"--from {start} --to {end}: two anchors in ascending order are needed ({near} …)")
    chosen = Selection(tuple(range(start + 1, end + 1)), tuple(_between(marks, start, end)), ())
    return _audit(evidence, policy, b"", workplace, progress, chosen)


def sampled_segments(evidence: Evidence, policy: Policy, nonce: bytes) -> Selection:
    """The segments that cover the sampled steps, as far as the window reaches."""
    if not evidence.steps or len(evidence.anchors) < 2:
        return Selection((), (), ())
    sampled = sample_steps(nonce, evidence.claim.identity, evidence.steps, policy.samples)
    reached = max(evidence.anchors)
    return select_segments((step for step in sampled if step <= reached), evidence.anchors, policy.window)


def every_segment(evidence: Evidence, policy: Policy, nonce: bytes) -> Selection:
    """The whole chain, anchor to anchor."""
    marks = sorted(evidence.anchors)
    if not evidence.steps or len(marks) < 2:
        return Selection((), (), ())
    return Selection(tuple(range(1, evidence.steps + 1)), tuple(_between(marks, marks[0], marks[-1])), ())


def _between(marks: list[int], start: int, end: int) -> Iterable[Segment]:
    inside = [mark for mark in marks if start <= mark <= end]
    return (Segment(a, b, True) for a, b in pairwise(inside))


def _audit(
    evidence: Evidence,
    policy: Policy,
    nonce: bytes,
    workplace: Workplace,
    progress: Progress,
    selection: Selection,
) -> Report:
    started = time.perf_counter()
    hangs_together = not evidence.findings.rejected
    screen_anchors(evidence)
    if policy.full:
        _derive_tokens(evidence)
    unavailable = list(_out_of_reach(selection, policy))
    segments: list[SegmentReport] = []
    try:
        if hangs_together:  # otherwise there is nothing to replay against
            segments.extend(_replay(evidence, policy, workplace, progress, selection))
    except UnavailableError as error:
        unavailable.append(str(error))
    share = unreachable_share(evidence.anchors, evidence.steps, policy.window)
    return Report(
        Verdict(
            tuple(evidence.findings.seen),
            tuple(unavailable),
            tuple(_not_checked(evidence, policy, selection, segments, share)),
            tuple(_assumptions(policy, nonce)),
        ),
        evidence.claim.identity,
        policy,
        nonce,
        selection,
        tuple(segments),
        evidence.steps,
        share,
        evidence.training_seconds,
        time.perf_counter() - started,
    )


def _replay(
    evidence: Evidence, policy: Policy, workplace: Workplace, progress: Progress, selection: Selection
) -> Iterable[SegmentReport]:
    """Replay the selected segments; raises `UnavailableError` saying why that is not possible."""
    replayer = _replayer(evidence, policy, workplace)
    judge_initial_state(evidence.findings, evidence.state(0), replayer.initial_state(), is_exact=policy.mode == "exact")
    total, done = sum(segment.steps for segment in selection.segments), 0
    for segment in selection.segments:
        yield replay_segment(evidence, segment, replayer, _judge(evidence, policy, workplace, segment))
        done += segment.steps
        progress(done, total)


def _replayer(evidence: Evidence, policy: Policy, workplace: Workplace) -> Replayer:
    spec, dataset, plan = evidence.spec, evidence.dataset, evidence.plan
    if spec.recipe is None or dataset is None or plan is None:
        raise UnavailableError("no step was replayed: the run was recorded around a loop that no recipe describes")
    if spec.recipe.training.device not in policy.devices:
        raise UnavailableError(f"the policy accepts no run on {spec.recipe.training.device}")
    differences = workplace.environment.differences(evidence.environment)
    if policy.mode == "exact" and differences:
        raise UnavailableError("different stack, ours / theirs: " + "; ".join(differences))
    return workplace.replayer(spec, dataset, plan)


def _judge(evidence: Evidence, policy: Policy, workplace: Workplace, segment: Segment) -> TolerantJudge | None:
    if policy.mode == "exact":
        return None
    recipe = evidence.spec.recipe
    assert recipe is not None  # only a recipe is replayed
    table = policy.calibration or shipped_calibration()
    entry = table.entry_for(recipe, segment.start, segment.steps)
    if entry is None:
        what = f"{recipe.optimizer.kind} in {recipe.training.dtype} over {segment.steps} steps"
        raise UnavailableError(f"no limits are calibrated for {what}; steps {segment.start + 1}–{segment.end} are open")
    same_device = workplace.environment.device == evidence.environment.device == "cpu"
    return TolerantJudge(evidence.run, evidence.spec, entry, policy.update_floor, same_device)


def _derive_tokens(evidence: Evidence) -> None:
    """Tokenize the source again: the digests of source and tokens do not show that one comes from the other."""
    commitment = evidence.spec.commitment
    if commitment is not None and commitment.tokens is not None and evidence.dataset is not None:
        with evidence.findings.check("tokens of the source"):
            verify_data(evidence.run.data_path, commitment)


def _out_of_reach(selection: Selection, policy: Policy) -> Iterable[str]:
    if not selection.sampled:
        yield "no step could be sampled"
    if selection.out_of_reach:
        steps = ", ".join(str(step) for step in selection.out_of_reach[:8])
        yield (
            f"{len(selection.out_of_reach)} of {len(selection.sampled)} sampled steps lie more than "
            f"{policy.window} steps behind their anchor (step {steps})"
        )


def _not_checked(
    evidence: Evidence, policy: Policy, selection: Selection, segments: list[SegmentReport], share: float
) -> Iterable[str]:
    replayed = sum(report.segment.steps for report in segments)
    if replayed < evidence.steps:
        yield f"{evidence.steps - replayed} of {evidence.steps} steps were not replayed"
    if share:
        yield (
            f"{100 * share:.1f} % of the steps lie out of reach of every audit with a window of {policy.window}: "
            "the anchor stride exceeds it"
        )
    if policy.claim is None:
        yield "whether this is the claim that was published: give its digest with --claim"
    if not policy.full:
        yield "whether the tokens are those of the source: `tally verify-data`, or --full"
    if evidence.failures:
        yield f"{evidence.failures} steps crashed and were repeated; the crashes themselves were not replayed"
    yield "who made the claim and when: it carries no signature yet"
    yield "whether other data was used elsewhere, before step 0 or after the last step"


def _assumptions(policy: Policy, nonce: bytes) -> Iterable[str]:
    yield "SHA-256 is collision resistant, and this machine and its libraries compute what they say"
    if nonce:
        yield "the nonce was drawn by the verifier after the claim was fixed"
    if policy.mode == "tolerant":
        yield "honest stacks differ by no more than those the limits were calibrated on"
    yield "training seconds are the prover's statement; only the cost ratio uses them"

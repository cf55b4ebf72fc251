"""Replays a segment from its anchor and judges its trajectory and its state.

Each judgement finds what the other misses: weights edited after training leave the trajectory as it was, and invented
losses leave the state as it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.sampling import Segment
from tallystick.commitments.encoding import Json
from tallystick.errors import UnavailableError
from tallystick.judging.findings import AGREES, DIFFERS, Findings
from tallystick.tensors.tensor import State
from tallystick.tolerances.loss import LossBand
from tallystick.transcripts.record import StepRecord
from tallystick.workloads.replayer import ReplayedStep, Replayer

if TYPE_CHECKING:
    from tallystick.audits.tolerant import TolerantJudge

NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@dataclass(frozen=True)
class Lost:
    """Steps of a selected segment that could not be replayed, and why the first of them could not."""

    start: int
    end: int
    why: str

    def __str__(self) -> str:
        steps = f"step {self.end}" if self.start == self.end else f"steps {self.start}–{self.end}"
        return f"{steps} cannot be replayed: {self.why}"


@dataclass(frozen=True)
class SegmentReport:
    """One replayed segment: how its trajectory and its state were judged, and what ended the replay too early."""

    segment: Segment
    seconds: float
    losses: tuple[tuple[int, float, float], ...]
    trajectory_agrees: bool
    state_agrees: bool
    state_compared: Literal["whole state", "summaries"]
    ended_by: str = ""

    def to_json(self) -> Json:
        """The report as JSON values."""
        return {
            "from": self.segment.start,
            "to": self.segment.end,
            "seconds": round(self.seconds, 3),
            "trajectory": "agrees" if self.trajectory_agrees else "differs",
            "state": "agrees" if self.state_agrees else "differs",
            "state_compared": self.state_compared,
        }


def replay_segment(
    evidence: CheckedRun,
    findings: Findings,
    segment: Segment,
    start: State,
    end: State,
    replayer: Replayer,
    judge: TolerantJudge | None,
) -> SegmentReport:
    """Replay one segment from the state `start` into `findings`; without a `judge`, equality of bits is asked for.

    `end` is the state of the next anchor, compared where the segment reaches it. The replay ends in front of a step
    that cannot be replayed; raises `UnavailableError` if that is the first.
    """
    started, notes = time.perf_counter(), Findings()
    replayer.restore(start)
    band = LossBand(evidence.spec.recorded.loss_decimals, judge.entry.loss_band if judge else 0.0)
    losses, agreed, ended_by = [], True, ""
    for index in range(segment.start + 1, segment.end + 1):
        claimed = evidence.step(index)
        try:
            replayed = replayer.step(index)
        except UnavailableError as error:
            if index == segment.start + 1:
                raise
            segment, ended_by = Segment(segment.start, index - 1, False), str(error)
            break
        losses.append((index, as_float(claimed.loss), replayed.loss))
        agreed &= _judge_trajectory(notes, claimed, replayed, band, judge)
        _judge_summaries(notes, claimed, replayed, start, replayer, judge)
    is_compared = True
    if segment.reaches_anchor and judge is not None:
        is_compared = judge.state(notes, start, end, replayer.state(), segment)
    elif segment.reaches_anchor:
        judge_whole_state(notes, end, replayer.state(), f"step {segment.end}")
    trajectory = [finding for finding in notes.seen if finding.name in TRAJECTORY]
    state = [finding for finding in notes.seen if finding.name not in TRAJECTORY and not finding.advisory]
    findings.extend(notes)
    return SegmentReport(
        segment,
        time.perf_counter() - started,
        tuple(losses),
        agreed and all(finding.agrees for finding in trajectory),
        is_compared and all(finding.agrees for finding in state),
        "whole state" if segment.reaches_anchor else "summaries",
        ended_by,
    )


TRAJECTORY = frozenset({"loss", "gradient norm", "activation"})


def as_float(value: float | str) -> float:
    """A recorded number as a float; "nan", "inf" and "-inf" are numbers too."""
    return NUMBERS[value] if isinstance(value, str) else value


def _judge_trajectory(
    notes: Findings, claimed: StepRecord, replayed: ReplayedStep, band: LossBand, judge: TolerantJudge | None
) -> bool:
    subject, exact = f"step {claimed.index}", judge is None
    finding = replace(band.compare(claimed.loss, replayed.loss), name="loss")
    told = replace(finding, detail=f"claimed {claimed.loss}, replayed {replayed.loss:.6f}")
    notes.note(told, "loss", subject) if judge is None else judge.note(notes, told, "loss", subject)
    if exact and claimed.gradient_norm is not None and replayed.gradient_norm is not None:
        same = as_float(claimed.gradient_norm) == round(replayed.gradient_norm, 12)
        notes.note(AGREES if same else DIFFERS, "gradient norm", subject)
    if exact and claimed.activation is not None and replayed.activation is not None:
        rounded = tuple(round(value, 12) for value in replayed.activation)
        same = tuple(as_float(value) for value in claimed.activation) == rounded
        notes.note(AGREES if same else DIFFERS, "activation", subject)
    return finding.agrees


def _judge_summaries(
    notes: Findings,
    claimed: StepRecord,
    replayed: ReplayedStep,
    start: State,
    replayer: Replayer,
    judge: TolerantJudge | None,
) -> None:
    subject = f"step {claimed.index}"
    if judge is not None:
        judge.summaries(notes, claimed, start, replayer.state(), subject)
        return
    ours = replayed.summary.model_dump(exclude_none=True)
    for name, value in claimed.post.model_dump(exclude_none=True).items():
        notes.note(AGREES if ours.get(name) == value else DIFFERS, f"{name} summary", subject)


def judge_whole_state(notes: Findings, claimed: State, replayed: State, subject: str) -> None:
    """Compare every byte of two states; each tensor that differs is one finding."""
    differing = [name for name in sorted(claimed.keys() | replayed.keys()) if not _same(claimed, replayed, name)]
    if not differing:
        notes.note(AGREES, "state", subject)
    for name in differing:
        from tallystick.tolerances.exact import describe_difference  # only of tensors that differ

        is_on_both = name in claimed and name in replayed
        detail = describe_difference(claimed[name], replayed[name]) if is_on_both else "only on one side"
        notes.note(DIFFERS, "state", f"{subject}, {name}", detail)


def _same(claimed: State, replayed: State, name: str) -> bool:
    if name not in claimed or name not in replayed:
        return False
    theirs, ours = claimed[name], replayed[name]
    same_kind = (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
    return same_kind and np.array_equal(np.frombuffer(theirs.data, np.uint8), np.frombuffer(ours.data, np.uint8))

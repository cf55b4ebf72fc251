"""Replays a segment from its anchor and judges its trajectory and its state."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.policy import Segment
from tallystick.core.canonical_json import Json
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import State
from tallystick.formats.records import StepRecord
from tallystick.formats.spec import SWITCHES, THREADS, THREADS_MAX, VALUE, Environment
from tallystick.verdicts.exact import (
    LossBand,
    describe_difference,
)
from tallystick.verdicts.replayer import ReplayedStep, Replayer
from tallystick.verdicts.verdict import AGREES, DIFFERS, Findings

if TYPE_CHECKING:
    from tallystick.audits.tolerant import TolerantJudge


# Why bits are not compared between two stacks: what differs between them, and what would make them equal.

SHOWN: Final = 3
WIDTH_MAX: Final = 48
LIBRARIES: Final = ("torch", "transformers")
HARDWARE: Final = ("gpus", "cpu", "machine")
SETTINGS: Final = ("capability", "threads", *SWITCHES)
FOLLOWING: Final = ("cuda", "cudnn", "math libraries")
"""Entries that come with a build of PyTorch."""
ORDER: Final = ("device", *LIBRARIES, *SETTINGS, *HARDWARE)
RELEASE: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}(\+(?P<build>cpu|cu[0-9]{2,4}|rocm[0-9.]{1,8}))?", re.ASCII)
"""A version that a package index may have; the stack is the word of a prover, and is not pasted into commands."""
BUILDS: Final = "https://download.pytorch.org/whl"

Differing = Mapping[str, tuple[str, str]]


def describe_other_stack(ours: Environment, theirs: Environment, tolerant: str) -> str:
    """The entries that matter, claimed → here, and the next step: `tolerant`, or what makes the stacks equal."""
    differing = ours.differing(theirs)
    named = sorted(differing, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    shown = ", ".join(f"{name} {_cut(differing[name][1])} → {_cut(differing[name][0])}" for name in named[:SHOWN])
    more = f" and {len(named) - SHOWN} more (-v lists all)" if len(named) > SHOWN else ""
    needed = " and ".join(_needed(ours, theirs, differing)) or "the stack that was claimed"
    return f"different stack (claimed → here): {shown}{more}; {tolerant}, and bit for bit needs {needed}"


def _needed(ours: Environment, theirs: Environment, differing: Differing) -> Iterator[str]:
    """What would make the stacks equal, as far as one can say."""
    is_device = theirs.device != ours.device
    if is_device:
        is_missing = theirs.device == "cuda" and not ours.gpus
        yield f"a machine with {theirs.device} (no such device here)" if is_missing else f"--device {theirs.device}"
    if any(name in differing for name in LIBRARIES):
        yield _install(theirs, [name for name in LIBRARIES if name in differing])
    if hardware := [name for name in HARDWARE if name in differing and not (is_device and name == "gpus")]:
        yield f"hardware with that {' and '.join(hardware)}"
    yield from _settings(ours, theirs, differing)
    is_explained = "torch" in differing or "capability" in differing  # the math libraries state the capability too
    if not is_explained and (builds := [name for name in FOLLOWING if name in differing]):
        yield f"a build of torch with that {' and '.join(builds)}"


def _install(theirs: Environment, names: list[str]) -> str:
    """The command that installs the claimed versions, or their names where no index has such a version."""
    versions = {name: theirs.torch if name == "torch" else theirs.package(name) for name in names}
    releases = {name: RELEASE.fullmatch(version) for name, version in versions.items()}
    if not all(releases.values()):
        return " and ".join(f"{name} {_cut(version)}" for name, version in versions.items())
    pinned = " ".join(f"'{name}=={version}'" for name, version in versions.items())
    builds = [match["build"] for match in releases.values() if match is not None and match["build"]]
    return f"`pip install {pinned}{f' --extra-index-url {BUILDS}/{builds[0]}' if builds else ''}`"


def _settings(ours: Environment, theirs: Environment, differing: Differing) -> Iterator[str]:
    """What to set before the command, and what not to set."""
    wanted = {name: theirs.variables.get(name, "") for name in SWITCHES if name in differing}
    assigned = [f"{name}={value}" for name, value in wanted.items() if value and VALUE.fullmatch(value)]
    if "threads" in differing and theirs.threads <= THREADS_MAX:
        assigned.append(f"{THREADS}={theirs.threads}")
    if assigned:
        yield f"`{' '.join(assigned)} tally audit …`"
    if unset := [name for name, value in wanted.items() if not value]:
        yield f"{' and '.join(unset)} not set"


def _cut(text: str) -> str:
    return (text or "none") if len(text) <= WIDTH_MAX else f"{text[: WIDTH_MAX - 1]}…"


# Replays a segment from its anchor and judges its trajectory and its state.
#
# Each judgement finds what the other misses: weights edited after training leave the trajectory as it was, and invented
# losses leave the state as it was.

NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@dataclass(frozen=True)
class UnreplayedSteps:
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
    finding = replace(
        band.compare(claimed.loss, replayed.loss),
        name="loss",
        detail=f"claimed {claimed.loss}, replayed {replayed.loss:.6f}",
    )
    notes.note(finding, "loss", subject) if judge is None else judge.note(notes, finding, "loss", subject)
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
        is_on_both = name in claimed and name in replayed
        detail = describe_difference(claimed[name], replayed[name]) if is_on_both else "only on one side"
        notes.note(DIFFERS, "state", f"{subject}, {name}", detail)


def _same(claimed: State, replayed: State, name: str) -> bool:
    if name not in claimed or name not in replayed:
        return False
    theirs, ours = claimed[name], replayed[name]
    same_kind = (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
    return same_kind and np.array_equal(np.frombuffer(theirs.data, np.uint8), np.frombuffer(ours.data, np.uint8))

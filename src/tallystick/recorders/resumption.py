"""Finds the anchor from which an interrupted run can be resumed.

One pass keeps the line numbers of the anchors. Only the lines after the chosen anchor are held in memory, so memory use
is small for runs of any length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.store.anchors import Anchors
from tallystick.store.log import read_lines
from tallystick.store.log_writer import mend_tail
from tallystick.store.retention import ANCHOR_MARK
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import AnchorRecord, Record, StepRecord, read_record
from tallystick.transcripts.summary import StateSummary


@dataclass(frozen=True)
class ResumePoint:
    """The last intact anchor of a run, and the records that were appended after it."""

    index: int
    state: Mapping[str, Tensor]
    summary: StateSummary
    lines_after: list[bytes]


def find_resume_point(run: RunDirectory) -> ResumePoint | None:
    """The last anchor whose record and file are both complete, or `None` if there is none yet."""
    if not run.transcript_path.exists():
        return None
    mend_tail(run.transcript_path)
    places = [place for place, line in enumerate(read_lines(run.transcript_path)) if ANCHOR_MARK in line]
    for place in reversed(places):
        anchor = _record_at(run, place)
        if isinstance(anchor, AnchorRecord) and (state := _intact(run, anchor)) is not None:
            lines_after = list(islice(read_lines(run.transcript_path), place + 1, None))
            return ResumePoint(anchor.index, state, _summary_at(run, place, anchor), lines_after)
    return None


def _record_at(run: RunDirectory, place: int) -> Record:
    line = next(islice(read_lines(run.transcript_path), place, None))
    return read_record(line, f"transcript.jsonl: line {place + 1}")


def _intact(run: RunDirectory, anchor: AnchorRecord) -> Mapping[str, Tensor] | None:
    try:
        state = Anchors(run.path).read(anchor.index)
    except (MalformedError, UnavailableError, ProofError):
        return None
    return state if state_digest(state) == anchor.digest else None


def _summary_at(run: RunDirectory, place: int, anchor: AnchorRecord) -> StateSummary:
    """The summary of the anchor's state in the record of the step before it."""
    if anchor.index == 0:
        return anchor.summary
    step = _record_at(run, place - 1)
    if not isinstance(step, StepRecord):
        raise MalformedError(f"transcript.jsonl: line {place} should be step {anchor.index}")
    return step.post

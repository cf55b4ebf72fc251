"""Where an interrupted run can be taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.store import RunDirectory, read_lines
from tallystick.store.log import mend_tail
from tallystick.tensors import Tensor, read_state, state_digest
from tallystick.transcripts import AnchorRecord, StateSummary, StepRecord, read_record


@dataclass(frozen=True)
class ResumePoint:
    """The last intact anchor of a run, and the records that were appended after it."""

    index: int
    state: Mapping[str, Tensor]
    summary: StateSummary
    lines_after: list[bytes]


def find_resume_point(run: RunDirectory) -> ResumePoint | None:
    """The last anchor whose record and file are both whole, or `None` if there is none yet."""
    if not run.transcript_path.exists():
        return None
    mend_tail(run.transcript_path)
    lines = list(read_lines(run.transcript_path))
    for position in range(len(lines) - 1, -1, -1):
        record = read_record(lines[position], f"transcript.jsonl: line {position + 1}")
        if isinstance(record, AnchorRecord) and (state := _intact(run, record)) is not None:
            summary = _summary_at(lines, position, record)
            return ResumePoint(record.index, state, summary, lines[position + 1 :])
    return None


def _intact(run: RunDirectory, anchor: AnchorRecord) -> Mapping[str, Tensor] | None:
    try:
        state = read_state(run.path / anchor.file, canonical=True)
    except (MalformedError, UnavailableError, ProofError):
        return None
    return state if state_digest(state) == anchor.digest else None


def _summary_at(lines: list[bytes], position: int, anchor: AnchorRecord) -> StateSummary:
    if anchor.index == 0:
        return anchor.summary
    step = read_record(lines[position - 1], f"transcript.jsonl: line {position}")
    if not isinstance(step, StepRecord):
        raise MalformedError(f"transcript.jsonl: line {position} should be step {anchor.index}")
    return step.post

"""The first step whose records differ, and the anchors that two runs have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tallystick.commitments.encoding import Json
from tallystick.differences.fields import FieldDifference, differing_fields
from tallystick.errors import MalformedError
from tallystick.store.log import read_lines
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import AnchorRecord, FailedRecord, StepRecord, read_record
from tallystick.transcripts.summary import StateSummary

CAUSES: Final = ("pre", "batch", "learning_rate", "learning_rates", "loss", "activation", "gradient_norm", "post")
"""The fields of a step record, causes before what follows from them."""


@dataclass(frozen=True)
class StepDifference:
    """The first step whose records differ: the fields that differ, in the order of `CAUSES`, and those that agree."""

    step: int
    fields: tuple[FieldDifference, ...]
    agreeing: tuple[str, ...]

    def to_json(self) -> Json:
        """As JSON values."""
        return {
            "agreeing": list(self.agreeing),
            "differing": [each.to_json() for each in self.fields],
            "step": self.step,
        }


@dataclass
class ReadRun:
    """The records of one run, as far as they were read: steps, crashed steps and anchors."""

    run: RunDirectory
    steps: int = 0
    failed: int = 0
    anchors: dict[int, AnchorRecord] = field(default_factory=dict)

    def records(self) -> Iterator[StepRecord]:
        """The step records in order; raises `MalformedError` for a line that is no record, or that is out of order."""
        for number, line in enumerate(read_lines(self.run.transcript_path), 1):
            record = read_record(line, f"{self.run.path}: transcript.jsonl: line {number}")
            if isinstance(record, AnchorRecord):
                self.anchors[record.index] = record
            elif isinstance(record, FailedRecord):
                self.failed += 1
            elif isinstance(record, StepRecord):
                if record.index != self.steps + 1:
                    raise MalformedError(f"{self.run.path}: step {record.index} follows step {self.steps}")
                self.steps = record.index
                yield record


def first_difference(first: ReadRun, second: ReadRun, same_spec: bool) -> StepDifference | None:
    """The first step whose records differ, of those that both runs have; reads both to the end.

    Projections are compared if `same_spec`: the spec is their seed.
    """
    found: StepDifference | None = None
    mine, theirs = first.records(), second.records()
    for ours, others in zip(mine, theirs, strict=False):
        found = found or _compared(ours, others, same_spec)
    for _ in (*mine, *theirs):
        pass  # the anchors of the rest
    return found


def _compared(first: StepRecord, second: StepRecord, same_spec: bool) -> StepDifference | None:
    if same_spec and first == second:
        return None
    mine, theirs = _comparable(first, second, same_spec), _comparable(second, first, same_spec)
    differing: list[FieldDifference] = []
    agreeing: list[str] = []
    for name in CAUSES:
        fields = differing_fields({name: mine.get(name)}, {name: theirs.get(name)})
        differing += fields
        if not fields and mine.get(name):
            agreeing.append(name)
    return StepDifference(first.index, tuple(differing), tuple(agreeing)) if differing else None


def _comparable(record: StepRecord, other: StepRecord, same_spec: bool) -> dict[str, Json]:
    """A record as JSON, with only those summaries that the other has too."""
    document = record.to_json()
    assert isinstance(document, dict)  # as every document
    shared = {name: _summaries(getattr(record, name), getattr(other, name), same_spec) for name in ("pre", "post")}
    return {**document, **shared}


def _summaries(mine: StateSummary, theirs: StateSummary, same_spec: bool) -> Json:
    """The digests and sketches that both sides recorded and that can be compared."""
    found, others = _digests(mine), _digests(theirs)
    shared = (found.keys() & others.keys()) - (set() if same_spec else {"projection"})
    return {name: found[name] for name in sorted(shared)}


def _digests(summary: StateSummary) -> dict[str, Json]:
    buckets = {"fp16_rne": summary.fp16_rne, "grid": summary.grid}
    plain = {"exact": summary.exact, "projection": summary.projection}
    found: dict[str, Json] = {name: str(value) for name, value in plain.items() if value is not None}
    return found | {name: str(bucket.digest) for name, bucket in buckets.items() if bucket is not None}

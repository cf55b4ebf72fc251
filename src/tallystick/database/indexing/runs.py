"""Reads run directories and recorded calls into the database: claims, transcripts, records, steps, anchors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tallystick.core.errors import MalformedError
from tallystick.database.bulk import insert_many, inserted
from tallystick.database.indexing.graphs import add_graph, use_graph
from tallystick.database.indexing.sources import (
    LogLine,
    LogPosition,
    keep_document,
    position_of,
    read_on,
    source_of,
    whole_lines,
)
from tallystick.database.schema import ANCHOR, RECORD, RUN, SOURCE, STEP
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.records import (
    AnchorRecord,
    Batch,
    FailedRecord,
    Record,
    StepRecord,
    TraceEntry,
    read_record,
)
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.formats.store.run import RunDirectory

# The seconds that steps took, read beside the records of these steps.


class StepTimes:
    """The entries of a timeline, for steps that are asked for in ascending order."""

    def __init__(self, path: Path) -> None:
        self._entries = _entries(path) if path.is_file() else iter(())
        self._next = next(self._entries, None)

    def of(self, step: int) -> TraceEntry | None:
        """The entry of a step; `None` while the timeline has none. Raises `MalformedError` at a line that is none."""
        while self._next is not None and self._next.step < step:
            self._next = next(self._entries, None)
        return self._next if self._next is not None and self._next.step == step else None


def _entries(path: Path) -> Iterator[TraceEntry]:
    for number, line in enumerate(whole_lines(path), 1):
        yield TraceEntry.from_bytes(line, f"{path.name}: line {number}")


# How far the transcripts of runs were read, and that they still begin with what was read.


def begin_run(connection: sa.Connection, kind: str, place: str, name: str | None) -> tuple[int, LogPosition]:
    """The number of a run, which is added if it is new, and how far its transcript was read."""
    source = source_of(connection, "run", place, name)
    found = connection.execute(sa.select(RUN).where(RUN.c.source == source)).one_or_none()
    if found is not None:
        return int(found.id), position_of_run(connection, int(found.id))
    empty = {"records": 0, "steps": 0, "bytes_read": 0, "frontier": b""}
    made = inserted(connection, RUN, source=source, kind=kind, status="recording", **empty)
    return made, LogPosition()


def position_of_run(connection: sa.Connection, number: int) -> LogPosition:
    """How far the transcript of a run was read."""
    found = connection.execute(sa.select(RUN).where(RUN.c.id == number)).one()
    return LogPosition.of(found.bytes_read, found.records, found.frontier)


def compared(connection: sa.Connection, transcript: Path, number: int, position: LogPosition) -> LogPosition:
    """The position to go on from, once the file has been found to begin with what is in the database.

    Records that a recording cut off at its end, because it could not go on, are forgotten. Raises `MalformedError` at a
    record that is another one.
    """
    if not position.lines:
        return position
    found = position_of(transcript, position.lines)
    if found == position:
        return position
    leaves = connection.execute(sa.select(RECORD.c.leaf).where(RECORD.c.run == number).order_by(RECORD.c.number))
    for index, (ours, line) in enumerate(zip(leaves.scalars(), read_on(transcript, LogPosition()), strict=False)):
        if ours != line.leaf:
            raise MalformedError(
                f"{transcript.parent.name}: record {index} of transcript.jsonl is not the one in the database; "
                "add the directory to another database, or `tally db forget` the run first"
            )
    _forget_from(connection, number, found)
    return found


def _forget_from(connection: sa.Connection, number: int, position: LogPosition) -> None:
    """Forget the records behind `position`: a recording that ended early cut them off in the file."""
    lines = position.lines
    connection.execute(sa.delete(RECORD).where(RECORD.c.run == number, RECORD.c.number >= lines))
    connection.execute(sa.delete(STEP).where(STEP.c.run == number, STEP.c.record >= lines))
    connection.execute(sa.delete(ANCHOR).where(ANCHOR.c.run == number, ANCHOR.c.record >= lines))
    keep_position(connection, number, position)


def keep_position(connection: sa.Connection, number: int, position: LogPosition, **more: Any) -> None:
    """Note how far the transcript of a run was read, and `more` of its row."""
    values = {"records": position.lines, "bytes_read": position.bytes_read, "frontier": position.peaks, **more}
    connection.execute(sa.update(RUN).where(RUN.c.id == number).values(**values))


# Reads an inference directory into the database: the claim over calls of a model, its records and its graph.

BATCH: Final = 20_000


def add_calls(database: WorkloadDatabase, calls: InferenceDirectory, name: str | None = None) -> str:
    """Read recorded calls into the database, or what is new of them; returns the name of the run there.

    Raises:
        MalformedError: a record in the file is another one than in the database, or the graph is not the claimed one.
        UnavailableError: a file of it cannot be read.
        UsageError: the name belongs to another run.
    """
    place, claim = str(calls.path.absolute()), calls.claim()
    with database.writing(place) as connection:
        number, position = begin_run(connection, "inference", place, name)
        compared(connection, calls.transcript_path, number, position)
        if calls.graph_path.is_file():
            use_graph(
                connection, number, add_graph(connection, calls.graph_path, claim.graph), "model", "graphs/model.json"
            )
    batch: list[LogLine] | None = None
    end = calls.transcript_path.stat().st_size
    while batch or batch is None:
        with database.writing(place) as connection:
            position = position_of_run(connection, number)
            batch = list(islice(read_on(calls.transcript_path, position, end=end), BATCH))
            rows = ((number, each.behind.lines - 1, "call", bytes(each.leaf)) for each in batch)
            insert_many(connection, RECORD, rows)
            if batch:
                keep_position(connection, number, batch[-1].behind)
    with database.writing(place) as connection:
        keep_document(connection, "claim", claim.identity, claim.to_bytes())
        keep_document(connection, "environment", claim.environment, calls.environment().to_bytes())
        stated = {
            "claim": claim.identity,
            "environment": claim.environment,
            "weights": claim.weights,
            "graph": claim.graph,
        }
        values = {"status": "claimed", "transcript": claim.transcript.root, **stated}
        connection.execute(sa.update(RUN).where(RUN.c.id == number).values(**values))
        return str(connection.execute(sa.select(SOURCE.c.name).join(RUN).where(RUN.c.id == number)).scalar_one())


# Reads a run directory into the database: what is claimed, its records, steps and anchors.
#
# A second reading goes on behind the last record that is there. Each batch of records is one transaction together with
# the position behind it, so an interrupted reading is gone on with, and a finished one changes nothing.


@dataclass
class _Rows:
    """The rows of some records."""

    records: list[tuple[Any, ...]] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    anchors: list[tuple[Any, ...]] = field(default_factory=list)
    last: Record | None = None


def add_run(database: WorkloadDatabase, run: RunDirectory, name: str | None = None, *, whole: bool = True) -> str:
    """Read a training run into the database, or what is new of it; returns its name there.

    With `whole`, the records that are in the database already are compared with the file.

    Raises:
        MalformedError: a record in the file is another one than in the database, or is no record.
        UnavailableError: a file of it cannot be read.
        UsageError: the name belongs to another run.
    """
    place = str(run.path.absolute())
    with database.writing(place) as connection:
        number, position = begin_run(connection, "training", place, name)
        if whole:
            compared(connection, run.transcript_path, number, position)
        _write_head(connection, run, number)
    times = StepTimes(run.trace_path)
    end = run.transcript_path.stat().st_size if run.transcript_path.is_file() else 0
    while end and _read_batch(database, run, number, times, end):
        continue
    with database.writing(place) as connection:
        _write_times(connection, run, number)
        _write_state(connection, run, number)
        return str(connection.execute(sa.select(SOURCE.c.name).join(RUN).where(RUN.c.id == number)).scalar_one())


def _read_batch(database: WorkloadDatabase, run: RunDirectory, number: int, times: StepTimes, end: int) -> bool:
    """Read some records behind those in the database, which others may be reading too; whether any were left."""
    with database.writing(str(run.path.absolute())) as connection:
        position = position_of_run(connection, number)
        batch = list(islice(read_on(run.transcript_path, position, end=end), BATCH))
        if batch:
            _write_records(connection, run, number, batch, times)
    return bool(batch)


def _write_head(connection: sa.Connection, run: RunDirectory, number: int) -> None:
    """What was fixed before the run: the spec and the environment, if they are there."""
    values: dict[str, Any] = {}
    if run.spec_path.is_file():
        spec = run.spec()
        keep_document(connection, "spec", spec.identity, spec.to_bytes())
        values |= {"spec": spec.identity, "data": spec.data_root, "graph": spec.graph, "title": _title(run)}
    if run.environment_path.is_file():
        environment = run.environment()
        digest = environment.digest_as("environment")
        keep_document(connection, "environment", digest, environment.to_bytes())
        values["environment"] = digest
    if values:
        connection.execute(sa.update(RUN).where(RUN.c.id == number).values(**values))


def _title(run: RunDirectory) -> str | None:
    """What is trained, in the prover's words."""
    spec = run.spec()
    if spec.recipe is not None:
        return spec.recipe.model.architecture
    return (
        None if not spec.description else "; ".join(f"{key}: {value}" for key, value in spec.description.items())[:500]
    )


def _write_records(
    connection: sa.Connection, run: RunDirectory, number: int, batch: list[LogLine], times: StepTimes
) -> None:
    rows = _Rows()
    for each in batch:
        place = each.behind.lines - 1
        record = read_record(each.line, f"{run.path.name}: record {place}")
        rows.records.append((number, place, record.kind, bytes(each.leaf)))
        rows.last = record
        if isinstance(record, StepRecord):
            rows.steps.append(_step_row(number, place, record, times.of(record.index)))
        elif isinstance(record, AnchorRecord):
            rows.anchors.append((number, record.index, place, record.digest, record.file, False))
    _insert(connection, rows)
    status = "failed" if isinstance(rows.last, FailedRecord) else "recording"
    steps = {"steps": rows.steps[-1][1]} if rows.steps else {}
    keep_position(connection, number, batch[-1].behind, status=status, **steps)


def _insert(connection: sa.Connection, rows: _Rows) -> None:
    insert_many(connection, RECORD, rows.records)
    insert_many(connection, STEP, rows.steps)
    insert_many(connection, ANCHOR, rows.anchors)


def _step_row(run: int, place: int, step: StepRecord, took: TraceEntry | None) -> tuple[Any, ...]:
    observed = (_finite(step.loss), _finite(step.gradient_norm), step.learning_rate)
    return (
        run,
        step.index,
        place,
        *observed,
        _batch(step.batch),
        step.graph,
        step.no_graph,
        " ".join(step.tags) or None,
        None if took is None else took.seconds,
        None if took is None else took.recording_seconds,
    )


def _finite(value: float | str | None) -> float | None:
    """The number; `None` for one that is not finite, which the record itself names."""
    return None if value is None or isinstance(value, str) else value


def _batch(batch: Batch) -> str | None:
    """What a step was trained on: the digest of its tensors, or how many rows of the data."""
    if batch.indices is None:
        return batch.digest
    return f"{batch.split}: {len(batch.indices)} rows"


def _write_times(connection: sa.Connection, run: RunDirectory, number: int) -> None:
    """How long the steps took whose time was not written yet when their records were read."""
    asked = sa.select(STEP.c.step).where(STEP.c.run == number, STEP.c.seconds.is_(None)).order_by(STEP.c.step)
    times = StepTimes(run.trace_path)
    entries = [entry for step in connection.execute(asked).scalars() if (entry := times.of(step)) is not None]
    step = sa.update(STEP).where(STEP.c.run == number, STEP.c.step == sa.bindparam("of"))
    update = step.values(seconds=sa.bindparam("took"), recording_seconds=sa.bindparam("recording"))
    if entries:
        connection.execute(
            update, [{"of": each.step, "took": each.seconds, "recording": each.recording_seconds} for each in entries]
        )


def _write_state(connection: sa.Connection, run: RunDirectory, number: int) -> None:
    """What changes while a run goes on: which anchors are there, the time it took, and its claim."""
    marks = connection.execute(sa.select(ANCHOR.c.step).where(ANCHOR.c.run == number)).scalars().all()
    there = set(run.anchors.present(marks))
    for present in (True, False):
        of = [mark for mark in marks if (mark in there) is present]
        connection.execute(
            sa.update(ANCHOR).where(ANCHOR.c.run == number, ANCHOR.c.step.in_(of)).values(present=present)
        )
    total = sa.select(sa.func.sum(STEP.c.seconds)).where(STEP.c.run == number).scalar_subquery()
    connection.execute(sa.update(RUN).where(RUN.c.id == number).values(seconds=total))
    if run.claim_path.is_file():
        _write_claim(connection, run, number)


def _write_claim(connection: sa.Connection, run: RunDirectory, number: int) -> None:
    claim = run.claim()
    keep_document(connection, "claim", claim.identity, claim.to_bytes())
    stated = {"transcript": claim.transcript.root, "final_state": claim.final_state, "weights": claim.weights}
    connection.execute(
        sa.update(RUN)
        .where(RUN.c.id == number)
        .values(status="claimed", claim=claim.identity, no_graph=claim.no_graph, **stated)
    )

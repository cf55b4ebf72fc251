"""Reads run directories and recorded calls into the database: claims, transcripts, records, steps, anchors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
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
    read_in_batches,
    read_on,
    source_of,
    whole_lines,
)
from tallystick.database.schema import ANCHOR, RECORD, RUN, SOURCE, STEP
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.records import (
    AnchorRecord,
    FailedRecord,
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


def begin_run(connection: sa.Connection, kind: str, place: str, name: str | None) -> int:
    """The number of a run, which is added if it is new."""
    source = source_of(connection, "run", place, name)
    known = connection.execute(sa.select(RUN.c.id).where(RUN.c.source == source)).scalar()
    if known is not None:
        return int(known)
    empty = {"records": 0, "steps": 0, "bytes_read": 0, "frontier": b""}
    return inserted(connection, RUN, source=source, kind=kind, status="recording", **empty)


def name_of_run(connection: sa.Connection, number: int) -> str:
    """The name of a run in the database."""
    return str(connection.execute(sa.select(SOURCE.c.name).join(RUN).where(RUN.c.id == number)).scalar_one())


def position_of_run(connection: sa.Connection, number: int) -> LogPosition:
    """How far the transcript of a run was read."""
    row = connection.execute(sa.select(RUN).where(RUN.c.id == number)).one()
    return LogPosition.of(row.bytes_read, row.records, row.frontier)


def forget_what_was_cut_off(connection: sa.Connection, transcript: Path, number: int) -> None:
    """Forget the records that a recording cut off at its end, because it could not go on.

    Raises `MalformedError` at a record of the file that is another one than in the database.
    """
    position = position_of_run(connection, number)
    now = position_of(transcript, position.lines) if position.lines else position
    if now == position:
        return
    leaves = connection.execute(sa.select(RECORD.c.leaf).where(RECORD.c.run == number).order_by(RECORD.c.number))
    for index, (ours, line) in enumerate(zip(leaves.scalars(), read_on(transcript, LogPosition()), strict=False)):
        if ours != line.leaf:
            raise MalformedError(
                f"{transcript.parent.name}: record {index} of transcript.jsonl is not the one in the database; "
                "add the directory to another database, or `tally db forget` the run first"
            )
    for table, column in ((RECORD, RECORD.c.number), (STEP, STEP.c.record), (ANCHOR, ANCHOR.c.record)):
        connection.execute(sa.delete(table).where(table.c.run == number, column >= now.lines))
    keep_position(connection, number, now)


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
        number = begin_run(connection, "inference", place, name)
        forget_what_was_cut_off(connection, calls.transcript_path, number)
        if calls.graph_path.is_file():
            graph = add_graph(connection, calls.graph_path, claim.graph)
            use_graph(connection, number, graph, "model", "graphs/model.json")

    def write(connection: sa.Connection, batch: list[LogLine]) -> None:
        insert_many(connection, RECORD, ((number, line.behind.lines - 1, "call", bytes(line.leaf)) for line in batch))
        keep_position(connection, number, batch[-1].behind)

    read_in_batches(database, place, calls.transcript_path, BATCH, partial(position_of_run, number=number), write)
    with database.writing(place) as connection:
        keep_document(connection, "claim", claim.identity, claim.to_bytes())
        keep_document(connection, "environment", claim.environment, calls.environment().to_bytes())
        values = {"status": "claimed", "transcript": claim.transcript.root, "claim": claim.identity}
        values |= {"environment": claim.environment, "weights": claim.weights, "graph": claim.graph}
        connection.execute(sa.update(RUN).where(RUN.c.id == number).values(**values))
        return name_of_run(connection, number)


# Reads a run directory into the database: what is claimed, its records, steps and anchors.


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
        number = begin_run(connection, "training", place, name)
        if whole:
            forget_what_was_cut_off(connection, run.transcript_path, number)
        _write_head(connection, run, number)
    times = StepTimes(run.trace_path)

    def write(connection: sa.Connection, batch: list[LogLine]) -> None:
        _write_records(connection, run, number, batch, times)

    read_in_batches(database, place, run.transcript_path, BATCH, partial(position_of_run, number=number), write)
    with database.writing(place) as connection:
        _write_times(connection, run, number)
        _write_state(connection, run, number)
        return name_of_run(connection, number)


def _write_head(connection: sa.Connection, run: RunDirectory, number: int) -> None:
    """What was fixed before the run: the spec and the environment, if they are there."""
    values: dict[str, Any] = {}
    if run.spec_path.is_file():
        spec = run.spec()
        keep_document(connection, "spec", spec.identity, spec.to_bytes())
        title = "; ".join(f"{key}: {value}" for key, value in (spec.description or {}).items())[:500] or None
        if spec.recipe is not None:
            title = spec.recipe.model.architecture
        values |= {"spec": spec.identity, "data": spec.data_root, "graph": spec.graph, "title": title}
    if run.environment_path.is_file():
        environment = run.environment()
        digest = environment.digest_as("environment")
        keep_document(connection, "environment", digest, environment.to_bytes())
        values["environment"] = digest
    if values:
        connection.execute(sa.update(RUN).where(RUN.c.id == number).values(**values))


def _write_records(
    connection: sa.Connection, run: RunDirectory, number: int, batch: list[LogLine], times: StepTimes
) -> None:
    rows: dict[sa.Table, list[tuple[Any, ...]]] = {RECORD: [], STEP: [], ANCHOR: []}
    values: dict[str, Any] = {}
    for line in batch:
        place = line.behind.lines - 1
        record = read_record(line.line, f"{run.path.name}: record {place}")
        rows[RECORD].append((number, place, record.kind, bytes(line.leaf)))
        if isinstance(record, StepRecord):
            rows[STEP].append(_step_row(number, place, record, times.of(record.index)))
            values["steps"] = record.index
        elif isinstance(record, AnchorRecord):
            rows[ANCHOR].append((number, record.index, place, record.digest, record.file, False))
        values["status"] = "failed" if isinstance(record, FailedRecord) else "recording"
    for table, new in rows.items():
        insert_many(connection, table, new)
    keep_position(connection, number, batch[-1].behind, **values)


def _step_row(run: int, place: int, step: StepRecord, took: TraceEntry | None) -> tuple[Any, ...]:
    # The record itself names a value that is not finite.
    observed = (None if isinstance(value, str) else value for value in (step.loss, step.gradient_norm))
    rows = step.batch.indices
    return (
        run,
        step.index,
        place,
        *observed,
        step.learning_rate,
        step.batch.digest if rows is None else f"{step.batch.split}: {len(rows)} rows",
        step.graph,
        step.no_graph,
        " ".join(step.tags) or None,
        None if took is None else took.seconds,
        None if took is None else took.recording_seconds,
    )


def _write_times(connection: sa.Connection, run: RunDirectory, number: int) -> None:
    """How long the steps took whose time was not written yet when their records were read."""
    untimed = sa.select(STEP.c.step).where(STEP.c.run == number, STEP.c.seconds.is_(None)).order_by(STEP.c.step)
    times = StepTimes(run.trace_path)
    entries = [entry for step in connection.execute(untimed).scalars() if (entry := times.of(step)) is not None]
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

"""How far the transcripts of runs were read, and that they still begin with what was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tallystick.errors import MalformedError
from tallystick.indexing.log_reading import LogPosition, position_of, read_on
from tallystick.indexing.sources import source_of
from tallystick.store.database.bulk import inserted
from tallystick.store.database.schema import ANCHOR, RECORD, RUN, STEP


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

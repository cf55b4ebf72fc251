"""Reads the receipts of a provider into the database, in the order in which they were issued."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, Final

import sqlalchemy as sa

from tallystick.errors import MalformedError
from tallystick.indexing.log_reading import LogLine, LogPosition, position_of, read_on
from tallystick.indexing.sources import source_of
from tallystick.store.database.bulk import insert_many, inserted
from tallystick.store.database.schema import RECEIPT, STREAM
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.transcripts.receipt import RECEIPT_BYTES_MAX, SignedReceipt

BATCH: Final = 5000
COLUMNS: Final = (
    *("stream", "number", "sequence", "key", "request", "digest", "model", "engine", "environment", "sampler"),
    *("prompt_tokens", "answer_tokens", "finish", "bytes"),
)


def add_receipts(database: WorkloadDatabase, path: Path, name: str | None = None) -> str:
    """Read a file of signed receipts, or what is new of it; returns the name of the stream.

    Signatures are not checked here: `tally verify-response` does that.

    Raises:
        MalformedError: a line is no receipt, or not the one that was read before.
        UnavailableError: there is no such file.
    """
    place = str(path.absolute())
    name = name or path.absolute().parent.name
    with database.writing(place) as connection:
        source = source_of(connection, "receipts", place, name)
        _, position = _position(connection, source)
    if position.lines and position_of(path, position.lines) != position:
        raise MalformedError(f"{path}: other receipts than in the database; `tally db forget {quote(name)}` first")
    end = path.stat().st_size
    while _read_batch(database, path, source, end):
        continue
    return name


def _read_batch(database: WorkloadDatabase, path: Path, source: int, end: int) -> bool:
    """Read some receipts behind those in the database, which others may be reading too; whether any were left."""
    with database.writing(str(path.absolute())) as connection:
        number, position = _position(connection, source)
        batch = list(islice(read_on(path, position, RECEIPT_BYTES_MAX, end), BATCH))
        if batch:
            _write(connection, path, number, batch)
    return bool(batch)


def _position(connection: sa.Connection, source: int) -> tuple[int, LogPosition]:
    found = connection.execute(sa.select(STREAM).where(STREAM.c.source == source)).one_or_none()
    if found is not None:
        return int(found.id), LogPosition.of(found.bytes_read, found.receipts, found.frontier)
    return inserted(connection, STREAM, source=source, receipts=0, bytes_read=0, frontier=b""), LogPosition()


def _write(connection: sa.Connection, path: Path, stream: int, batch: list[LogLine]) -> None:
    rows = [_row(stream, each, path) for each in batch]
    insert_many(connection, RECEIPT, COLUMNS, rows)
    behind = batch[-1].behind
    values = {"receipts": behind.lines, "bytes_read": behind.bytes_read, "frontier": behind.peaks, "key": rows[-1][3]}
    connection.execute(sa.update(STREAM).where(STREAM.c.id == stream).values(**values))


def _row(stream: int, line: LogLine, path: Path) -> tuple[Any, ...]:
    number = line.behind.lines - 1
    signed = SignedReceipt.from_bytes(line.line, f"{path.name}: line {number + 1}")
    receipt = signed.receipt
    engine = f"{receipt.engine.name} {receipt.engine.version}"
    named = (receipt.request.id, receipt.identity, receipt.model, engine, receipt.engine.environment)
    counts = (receipt.request.prompt.count, receipt.answer.tokens.count, receipt.answer.finish, len(line.line))
    sampler = receipt.sampler.to_bytes().decode()
    return (stream, number, receipt.sequence, signed.key, *named, sampler, *counts)

"""What the scale of the workload database is measured on: a trace, a run, and rows of every other table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from tallystick.core.digests import Frontier, digest, digest_from, leaf_hash
from tallystick.database.bulk import insert_many
from tallystick.database.schema import METADATA, TENSOR
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.claims import Log
from tallystick.formats.cluster import Cluster, Device
from tallystick.formats.records import Batch, StateSummary, StepRecord, TraceEntry, encode_sketch
from tallystick.formats.store.run import RunDirectory
from tallystick.formats.store.traces import TraceFolder, TraceStatement
from tests.support import postgresql

DEVICES: Final = tuple(f"node{number // 8}/gpu{number % 8}" for number in range(16))
FILLED: Final = 1000
"""Rows of every table that neither the trace nor the run fills: ten pages."""
BEHIND: Final = 1 << 30
"""Their numbers begin here, behind those that the database gave."""


def kinds(folder: Path, stack: ExitStack) -> Iterator[tuple[str, Iterator[str]]]:
    """The name of each kind of database, and places for fresh ones, which end with `stack`."""
    yield "SQLite", (f"sqlite:///{folder}/{number}.db" for number in range(9))
    try:
        postgresql.server()
    except pytest.skip.Exception as skipped:
        print(f"no figures of PostgreSQL: {skipped}")
        return
    yield "PostgreSQL", (stack.enter_context(postgresql.database()) for _ in range(9))


def write_events(folder: Path, count: int) -> TraceFolder:
    """A trace of `count` kernels on 16 devices in the order of their start; its lines are those of `TraceEvent`."""
    folder.mkdir()
    found, frontier = TraceFolder(folder), Frontier.empty()
    with found.events_path.open("wb") as file:
        for number in range(count):
            line = _event_line(number)
            frontier = frontier.append(leaf_hash(line))
            file.write(line + b"\n")
    cluster = Cluster.of([Device(name=name, kind="gpu", memory=80 << 30) for name in DEVICES], [])
    log = Log(root=digest_from(frontier.root()), size=count)
    statement = TraceStatement(cluster=cluster.identity, clock="CLOCK_REALTIME", source="benchmark", events=log)
    found.cluster_path.write_bytes(cluster.to_bytes())
    found.statement_path.write_bytes(statement.to_bytes())
    return found


def _event_line(number: int) -> bytes:
    """The bytes of an event, without the cost of a model for each of 10⁷; the reader refuses other bytes."""
    operator = number % 4000
    return (
        b'{"device":"%s","duration":%d,"kind":"kernel","memory":%d,"name":"sm90_gemm_bf16_128x128_%d",'
        b'"operator":%d,"start":%d,"step":%d,"stream":7}'
        % (
            DEVICES[number % len(DEVICES)].encode(),
            5000 + number % 977,
            40_000_000_000 + number % 4096,
            operator % 60,
            operator,
            event_start(number),
            number // 4000,
        )
    )


def event_start(number: int) -> int:
    """When an event starts, in nanoseconds."""
    return 1_760_000_000_000_000 + 700 * number


def write_steps(folder: Path, count: int) -> RunDirectory:
    """A run directory with `count` step records as training writes them, and the time that each step took."""
    folder.mkdir()
    run = RunDirectory(folder)
    record = _record(7_777_777)
    entry = TraceEntry(step=7_777_777, seconds=0.512345, recording_seconds=0.001234).to_bytes()
    with run.transcript_path.open("wb") as records, run.trace_path.open("wb") as times:
        for step in range(1, count + 1):
            number = b"%d" % step
            records.write(record.replace(b"7777777", number) + b"\n")
            times.write(entry.replace(b"7777777", number) + b"\n")
    return run


def _record(step: int) -> bytes:
    sketch = StateSummary(projection=encode_sketch(bytes(range(64))))
    return StepRecord(
        index=step,
        data=digest("dataset", b""),
        batch=Batch(indices=tuple(range(1000, 1016))),
        pre=sketch,
        post=sketch,
        loss=3.1416,
        gradient_norm=0.123456789012,
        learning_rate=1e-3,
    ).to_bytes()


def fill_tensors(database: WorkloadDatabase, count: int) -> None:
    """Rows of `count` tensors."""
    rows = ((tensor_digest(number), "F32", "1024x1024", "row-major", 1 << 22) for number in range(count))
    with database.writing("tensors") as connection:
        insert_many(connection, TENSOR, rows)


def tensor_digest(number: int) -> str:
    """The digest of one of the tensors."""
    return digest("tensor", b"%d" % number)


def fill_the_rest(database: WorkloadDatabase) -> None:
    """Rows of every table, so that no first page is an empty one."""
    with database.writing("rest") as connection:
        for table in METADATA.sorted_tables:
            if table.name not in {"token", "upload"}:
                connection.execute(sa.insert(table), [_row(table, number) for number in range(FILLED)])


def _row(table: sa.Table, number: int) -> dict[str, Any]:
    return {column.name: _value(table, column, number) for column in table.columns}


def _value(table: sa.Table, column: sa.Column[Any], number: int) -> Any:
    """A value of the column's type; keys and links are numbers behind all others."""
    if column.name == "id" or column.foreign_keys or (column.primary_key and column.type.python_type is int):
        return BEHIND + number
    if (table.name, column.name) in {("document", "noun"), ("run", "claim"), ("document", "digest")}:
        return {"noun": ("claim", "environment")[number % 2]}.get(column.name, f"sha256:{number:064x}")
    kind = column.type.python_type
    if kind is bytes:
        return number.to_bytes(32, "big")
    return f"{table.name} {column.name} {number}" if kind is str else kind(number % 2 if kind is bool else number)

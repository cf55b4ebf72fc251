"""Reading a trace and a run into the database ÷ inserting the same rows by hand."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.database_scene import write_events, write_steps
from benchmarks.figure import Figure, Goal
from benchmarks.measure import Arm, Interval, Round, interval, time_arm, total, total_ratio
from tallystick.database.bulk import insert_many
from tallystick.database.indexing.graphs import add_trace
from tallystick.database.indexing.runs import add_run
from tallystick.database.schema import CLUSTER, EVENT, RECORD, RUN, SOURCE, STEP, TRACE
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.store.run import RunDirectory
from tallystick.formats.store.traces import TraceFolder

CHUNK: Final = 20_000
PARENTS: Final = (SOURCE, CLUSTER, RUN, TRACE)


@dataclass(frozen=True)
class Workload:
    """A trace and a run, and how much of each there is."""

    trace: TraceFolder
    run: RunDirectory
    events: int
    records: int

    @classmethod
    def at(cls, folder: Path, events: int, records: int) -> Workload:
        """Write both into `folder`."""
        folder.mkdir()
        return cls(write_events(folder / "trace", events), write_steps(folder / "run", records), events, records)

    def add_to(self, database: WorkloadDatabase) -> None:
        """Read both."""
        add_run(database, self.run)
        add_trace(database, self.trace)


def ingest(
    kind: str,
    database: WorkloadDatabase,
    copies: tuple[WorkloadDatabase, WorkloadDatabase],
    workload: Workload,
    rng: random.Random,
) -> Iterator[Figure]:
    """Read the workload into `database`, and its rows into the two copies: by hand, and by our insert alone."""
    run = time_arm(partial(add_run, database, workload.run)).wall
    trace = time_arm(partial(add_trace, database, workload.trace)).wall
    for copy in copies:
        _copy_parents(database, copy)
    tables = {"events": EVENT, "records": RECORD, "steps": STEP}
    rounds = {name: _inserted(database, copies, table, rng) for name, table in tables.items()}
    of_run = [*rounds["records"], *rounds["steps"]]
    yield from _figures(f"{kind} ingest of trace events", workload.events, trace, rounds["events"], rng)
    yield from _figures(f"{kind} ingest of step records", workload.records, run, of_run, rng)


def _figures(name: str, count: int, seconds: float, rounds: list[Round], rng: random.Random) -> Iterator[Figure]:
    raw, ours = (total(rounds, arm, "wall") for arm in ("raw", "ours"))
    rates = {"per_second": count / seconds, "raw": count / raw}
    ratio, goal = raw / seconds, Goal(0.5, at_most=False)
    what = f"{name}, {count:,}: rate ÷ that of the raw insert of the same rows"
    yield Figure(f"database_scale: {name}", what, Interval(ratio, ratio, ratio), 1, "wall", "×", goal, details=rates)
    writing = interval(rounds, total_ratio("raw", "ours", "wall"), rng)
    what = f"{name}, the writing alone: rate ÷ that of the raw insert"
    details = {"per_second": count / ours}
    yield Figure(f"database_scale: {name}, writing", what, writing, len(rounds), "wall", "×", goal, details=details)


def _copy_parents(source: WorkloadDatabase, copy: WorkloadDatabase) -> None:
    with source.sql.reading() as reading, copy.writing("parents") as writing:
        for table in PARENTS:
            rows = [row._asdict() for row in reading.execute(sa.select(table))]
            writing.execute(sa.insert(table), rows)


def _inserted(
    source: WorkloadDatabase,
    copies: tuple[WorkloadDatabase, WorkloadDatabase],
    table: sa.Table,
    rng: random.Random,
) -> list[Round]:
    """The rows of a table, chunk by chunk into both copies, each in one transaction; the commit is the last round."""
    rounds = []
    with source.sql.reading() as reading, copies[0].sql.engine.connect() as by_hand, ExitStack() as ours:
        asked = reading.execution_options(yield_per=CHUNK)
        driver, connection = by_hand.connection.driver_connection, ours.enter_context(copies[1].writing("copy"))
        assert driver is not None
        driver.execute("BEGIN")
        for part in asked.execute(sa.select(table).order_by(*table.primary_key)).partitions():
            rows = [tuple(row) for row in part]
            ours_of = partial(insert_many, connection, table, rows)
            rounds.append(_round(partial(_insert_by_hand, driver, table, rows), ours_of, rng))
        rounds.append(_round(driver.commit, ours.close, rng))
    return rounds


def _round(raw: Arm, ours: Arm, rng: random.Random) -> Round:
    arms = {"raw": raw, "ours": ours}
    return {name: time_arm(arms[name]) for name in rng.sample(sorted(arms), 2)}


def _insert_by_hand(driver: Any, table: sa.Table, rows: list[Any]) -> None:
    columns = ", ".join(table.c.keys())
    if isinstance(driver, sqlite3.Connection):
        marks = ", ".join("?" * len(table.c))
        driver.executemany(f"INSERT INTO {table.name} ({columns}) VALUES ({marks})", rows)
        return
    with driver.cursor() as cursor, cursor.copy(f"COPY {table.name} ({columns}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)

"""SQL over the views: typed by somebody, asked often, and every view as a Parquet file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tallystick.core.canonical_json import Json
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.sql import TOO_LONG, limited
from tallystick.database.schema import VIEWS, view
from tallystick.database.workload_database import WorkloadDatabase

# Reads with SQL that somebody typed: one statement, which the database itself keeps from writing.

SECONDS: Final = 60
INSTRUCTIONS: Final = 100_000
READS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


@dataclass(frozen=True)
class SelectedRows:
    """The rows that a statement gives, with the names of their columns; `more` says that others were left off."""

    columns: tuple[str, ...]
    rows: list[tuple[Json, ...]]
    more: bool = False


def select(database: WorkloadDatabase, sql: str, limit: int, seconds: float = SECONDS) -> SelectedRows:
    """What a statement gives, `limit` rows at most; bytes are written as hexadecimal digits.

    Raises `UsageError` where the statement is not understood, would write, is several, or takes longer than `seconds`.
    """
    with database.sql.engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        is_file = connection.dialect.name == "sqlite"
        try:
            with _only_reading(raw, seconds) if is_file else _reading_postgresql(raw, seconds):
                return _fetched(raw.execute(sql) if is_file else raw.execute(sql, prepare=True), limit)
        except connection.dialect.loaded_dbapi.Error as error:
            complaint = " ".join(str(error).split())[:300]
            if any(each in complaint for each in TOO_LONG):
                mend = "ask for less, or give it more with --timeout"
                raise UsageError(f"the statement takes longer than {seconds:g} seconds; {mend}") from None
            mend = "it takes one SELECT, and `tally query` lists the views"
            raise UsageError(f"the database does not take the statement: {complaint}; {mend}") from None
        finally:
            connection.invalidate()  # nobody else gets a connection that was set up for this


def list_views() -> SelectedRows:
    """Each view, and the names of its columns in one text; as `select` answers."""
    rows: list[tuple[Json, ...]] = [(name, ", ".join(view.selected_columns.keys())) for name, view in VIEWS.items()]
    return SelectedRows(("view", "columns"), rows)


@contextmanager
def _only_reading(raw: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """The authorizer lets SELECT through and nothing else, not even a PRAGMA or a VACUUM INTO another file."""
    raw.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY)
    with limited(raw, seconds, INSTRUCTIONS):
        yield


@contextmanager
def _reading_postgresql(raw: Any, seconds: float) -> Iterator[None]:
    """A prepared statement is one statement, so none can end the transaction that only reads."""
    raw.execute("SET TRANSACTION READ ONLY")
    raw.execute(f"SET LOCAL statement_timeout = {max(1, int(1000 * seconds))}")
    yield


def _fetched(cursor: Any, limit: int) -> SelectedRows:
    if cursor.description is None:
        raise UsageError("a SELECT is asked for; this statement gives no rows")
    rows = [tuple(map(_json, row)) for row in cursor.fetchmany(limit + 1)]
    return SelectedRows(tuple(column[0] for column in cursor.description), rows[:limit], len(rows) > limit)


def _json(value: Any) -> Json:
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


# Questions that people ask often, as SQL over the views: for `tally query`, Datasette and DuckDB.


@dataclass(frozen=True)
class UsefulQuery:
    """A question, and the SQL that answers it on SQLite, PostgreSQL and DuckDB."""

    name: str
    title: str
    sql: str


USEFUL_QUERIES: Final = (
    UsefulQuery(
        "runs_and_verdicts",
        "Each run with what audits said of it",
        """
SELECT r.name, r.status, r.steps, count(a.digest) AS audits,
       sum(CASE WHEN a.outcome = 'accepted' THEN 1 ELSE 0 END) AS accepted,
       sum(CASE WHEN a.outcome = 'rejected' THEN 1 ELSE 0 END) AS rejected
FROM runs r LEFT JOIN audits a ON a.run = r.name
GROUP BY r.run_id, r.name, r.status, r.steps ORDER BY r.run_id
""",
    ),
    UsefulQuery(
        "runs_without_an_accepted_audit",
        "Runs that nobody has found correct yet",
        """
SELECT r.name, r.status, r.steps FROM runs r
WHERE NOT EXISTS (SELECT 1 FROM audits a WHERE a.run = r.name AND a.outcome = 'accepted') ORDER BY r.run_id
""",
    ),
    UsefulQuery(
        "steps_that_were_replayed",
        "How many steps of each run an audit replayed",
        """
SELECT s.run, count(*) AS steps FROM steps s
WHERE EXISTS (SELECT 1 FROM audited_segments g
              WHERE g.run = s.run AND s.step BETWEEN g.first_step AND g.last_step AND g.outcome = 'agrees')
GROUP BY s.run ORDER BY s.run
""",
    ),
    UsefulQuery(
        "steps_without_a_graph",
        "Steps that no auditor can replay, and why",
        """
SELECT run, no_graph, count(*) AS steps, min(step) AS first, max(step) AS last FROM steps
WHERE no_graph IS NOT NULL GROUP BY run, no_graph ORDER BY run, first
""",
    ),
    UsefulQuery(
        "states_that_are_not_there",
        "States that a run recorded and whose files were not there when they were last looked for",
        "SELECT run, step, file FROM anchors WHERE NOT present ORDER BY run_id, step",
    ),
    UsefulQuery(
        "values_of_another_precision",
        "Values that were kept in another precision than the step graph asks for",
        """
SELECT run, step, edge, intended, realised FROM bindings WHERE intended <> realised
ORDER BY run_id, step, edge, moment
""",
    ),
    UsefulQuery(
        "operations_by_operator",
        "Which operators of each graph cost most",
        """
SELECT graph, operator, count(*) AS nodes, sum(operations) AS operations FROM operators
GROUP BY graph, operator ORDER BY graph, operations DESC
""",
    ),
    UsefulQuery(
        "busy_time_by_device",
        "How long each device of a timeline was busy, by kind of event",
        """
SELECT trace, device, kind, count(*) AS events, sum(duration_ns) / 1e9 AS seconds FROM events
GROUP BY trace, device, kind ORDER BY trace, device, kind
""",
    ),
    UsefulQuery(
        "comparisons_that_differ",
        "Every comparison of an audit that did not agree",
        "SELECT audit, place, step, distance, allowed FROM findings WHERE NOT agrees ORDER BY audit_id, number",
    ),
    UsefulQuery(
        "receipts_by_verdict",
        "How many receipts of each stream were accepted, rejected or not judged",
        """
SELECT stream, coalesce(verdict, 'not judged') AS verdict, count(*) AS receipts FROM receipts
GROUP BY stream, coalesce(verdict, 'not judged') ORDER BY stream, verdict
""",
    ),
)


def datasette_metadata(database: str) -> dict[str, Json]:
    """What `datasette -m` reads: the useful queries for the file that Datasette names `database`."""
    queries: dict[str, Json] = {
        query.name: {"title": query.title, "sql": query.sql.strip()} for query in USEFUL_QUERIES
    }
    return {"title": "Tallystick", "databases": {database: {"queries": queries}}}


# Writes every view as a Parquet file, for DuckDB, Polars and others.

ROWS: Final = 50_000
"""The rows of a row group, which are held at once."""


def export_parquet(database: WorkloadDatabase, folder: Path) -> dict[str, int]:
    """Write one file a view into `folder`; returns how many rows each has. Views without rows have a file too.

    Raises `UnavailableError` where the disk cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with database.sql.reading() as connection:
        if not database.sql.is_file:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            return {name: _write(connection, name, folder / f"{name}.parquet") for name in VIEWS}
        except OSError as error:
            raise UnavailableError(f"{folder}: could not be written: {error}") from None


def _write(connection: sa.Connection, name: str, path: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    table, count = view(name), 0
    kinds = (
        (sa.Boolean, pa.bool_()),
        (sa.Integer, pa.int64()),
        (sa.Float, pa.float64()),
        (sa.LargeBinary, pa.binary()),
        (sa.types.TypeEngine, pa.string()),
    )
    schema = pa.schema(
        [(column.name, next(type for kind, type in kinds if isinstance(column.type, kind))) for column in table.c]
    )
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in connection.execute(sa.select(table).execution_options(yield_per=ROWS)).partitions():
            columns = [
                pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
            ]
            writer.write_table(pa.table(columns, schema=schema))
            count += len(rows)
    return count

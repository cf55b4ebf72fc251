"""Reads with SQL that somebody typed: one statement, which the database itself keeps from writing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tallystick.commitments.encoding import Json
from tallystick.errors import UsageError
from tallystick.store.database.engine import TOO_LONG, limited
from tallystick.store.database.views import VIEWS
from tallystick.store.database.workload_database import WorkloadDatabase

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
            said = " ".join(str(error).split())[:300]
            if any(each in said for each in TOO_LONG):
                mend = "ask for less, or give it more with --timeout"
                raise UsageError(f"the statement takes longer than {seconds:g} seconds; {mend}") from None
            mend = "it takes one SELECT, and `tally query` lists the views"
            raise UsageError(f"the database does not take the statement: {said}; {mend}") from None
        finally:
            connection.invalidate()  # nobody else gets a connection that was set up for this


def list_views() -> SelectedRows:
    """Each view, and the names of its columns in one text; as `select` answers."""
    rows: list[tuple[Json, ...]] = [(name, ", ".join(each.selected_columns.keys())) for name, each in VIEWS.items()]
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

"""Reads with SQL that somebody typed: one statement, which the database itself keeps from writing."""

from __future__ import annotations

import sqlite3
import time
from typing import Any, Final

from tallystick.commitments.encoding import Json
from tallystick.errors import UsageError
from tallystick.store.database.engine import TOO_LONG
from tallystick.store.database.views import VIEWS
from tallystick.store.database.workload_database import WorkloadDatabase

SECONDS: Final = 300
"""Enough to add up 10⁷ events on a busy machine."""
READS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
Rows = tuple[tuple[str, ...], list[tuple[Json, ...]]]


def select(database: WorkloadDatabase, sql: str, limit: int) -> Rows:
    """The names of the columns, and `limit` rows at most; bytes are written as hexadecimal digits.

    Raises `UsageError` where the statement is not understood, would write, is several, or takes too long.
    """
    with database.sql.engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        is_file = connection.dialect.name == "sqlite"
        try:
            return _on_sqlite(raw, sql, limit) if is_file else _on_postgresql(raw, sql, limit)
        except connection.dialect.loaded_dbapi.Error as error:
            said = " ".join(str(error).split())[:300]
            if any(each in said for each in TOO_LONG):
                raise UsageError(f"the statement takes longer than {SECONDS} seconds; ask for less") from None
            mend = "it takes one SELECT, and `tally query` lists the views"
            raise UsageError(f"the database does not take the statement: {said}; {mend}") from None
        finally:
            connection.invalidate()  # nobody else gets a connection that was set up for this


def list_views() -> Rows:
    """Each view, and the names of its columns in one text; as `select` answers."""
    return ("view", "columns"), [(name, ", ".join(each.selected_columns.keys())) for name, each in VIEWS.items()]


def _on_sqlite(raw: sqlite3.Connection, sql: str, limit: int) -> Rows:
    """The authorizer lets SELECT through and nothing else, not even a PRAGMA or a VACUUM INTO another file."""
    end = time.monotonic() + SECONDS
    raw.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY)
    raw.set_progress_handler(lambda: time.monotonic() > end, 100_000)
    return _fetched(raw.execute(sql), limit)


def _on_postgresql(raw: Any, sql: str, limit: int) -> Rows:
    """A prepared statement is one statement, so none can end the transaction that only reads."""
    raw.execute("SET TRANSACTION READ ONLY")
    raw.execute(f"SET LOCAL statement_timeout = '{SECONDS}s'")
    return _fetched(raw.execute(sql, prepare=True), limit)


def _fetched(cursor: Any, limit: int) -> Rows:
    if cursor.description is None:
        raise UsageError("a SELECT is asked for; this statement gives no rows")
    rows = [tuple(map(_json, row)) for row in cursor.fetchmany(limit)]
    return tuple(column[0] for column in cursor.description), rows


def _json(value: Any) -> Json:
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)

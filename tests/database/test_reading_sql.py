"""SQL that somebody types: it reads the views, and nothing else happens."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from tallystick.core.errors import UsageError
from tallystick.database.bulk import inserted
from tallystick.database.schema import RUN, SOURCE
from tallystick.database.sql import SelectedRows, select
from tallystick.database.workload_database import WorkloadDatabase


@pytest.fixture
def database(empty: WorkloadDatabase) -> WorkloadDatabase:
    """One run without records."""
    with empty.writing("") as connection:
        source = inserted(connection, SOURCE, kind="run", name="one", place="/runs/one")
        counts = {"records": 0, "steps": 0, "bytes_read": 0, "frontier": b"\x01\xff"}
        inserted(connection, RUN, source=source, kind="training", status="recording", **counts)
    return empty


def test_rows_with_the_names_of_their_columns(database: WorkloadDatabase) -> None:
    found = select(database, "SELECT name, steps AS n, title FROM runs WHERE name LIKE 'o%'", 10)
    assert found == SelectedRows(("name", "n", "title"), [("one", 0, None)])
    assert select(database, "SELECT frontier FROM run", 10).rows == [("01ff",)]


def test_rows_that_are_left_off_are_told(database: WorkloadDatabase) -> None:
    three = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n"
    assert select(database, three, 2) == SelectedRows(("i",), [(1,), (2,)], more=True)
    assert select(database, three, 3) == SelectedRows(("i",), [(1,), (2,), (3,)])


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM run",
        "UPDATE run SET status = 'claimed' RETURNING status",
        "CREATE TABLE letters (id INTEGER)",
        "DROP VIEW runs",
        "SELECT name FROM runs; DELETE FROM run",
        "COMMIT; DELETE FROM run",
        "SELECT no_such_column FROM runs",
        "SELEC 1",
        "",
    ],
)
def test_what_is_no_single_select_is_refused(database: WorkloadDatabase, sql: str) -> None:
    with pytest.raises(UsageError):
        select(database, sql, 10)
    with database.sql.reading() as connection:
        assert connection.execute(sa.select(RUN.c.status)).scalars().all() == ["recording"]
    with database.writing("") as connection:  # the next connection is a usual one
        connection.execute(sa.update(RUN).values(status="claimed"))


def test_no_other_file_is_written(database: WorkloadDatabase, tmp_path: Path) -> None:
    for sql in (f"VACUUM INTO '{tmp_path}/copy.db'", f"ATTACH '{tmp_path}/copy.db' AS copy", "PRAGMA query_only = OFF"):
        with pytest.raises(UsageError):
            select(database, sql, 10)
    assert not (tmp_path / "copy.db").exists()


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def test_a_statement_that_takes_too_long_ends(database: WorkloadDatabase) -> None:
    with pytest.raises(
        UsageError, match=r"takes longer than 0\.2 seconds; ask for less, or give it more with --timeout"
    ):
        select(database, ENDLESS, 10, 0.2)


class _Stopped(BaseException):
    """What the handler of a signal raises, as that of Ctrl-C does."""


def _typed(database: WorkloadDatabase) -> None:
    select(database, ENDLESS, 10)


def _from_python(database: WorkloadDatabase) -> None:
    with database.sql.answering() as connection:
        connection.exec_driver_sql(ENDLESS)


@pytest.mark.parametrize("ask", [_typed, _from_python])
def test_a_signal_ends_a_statement_as_itself(
    database: WorkloadDatabase, ask: Callable[[WorkloadDatabase], None]
) -> None:
    def stop(*_: object) -> None:
        raise _Stopped

    before = signal.signal(signal.SIGTERM, stop)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        with pytest.raises(_Stopped):
            ask(database)
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)

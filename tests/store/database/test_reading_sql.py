"""SQL that somebody types: it reads the views, and nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tallystick.errors import UsageError
from tallystick.store.database import reading_sql
from tallystick.store.database.bulk import inserted
from tallystick.store.database.reading_sql import select
from tallystick.store.database.schema import RUN, SOURCE
from tallystick.store.database.workload_database import WorkloadDatabase


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
    assert found == (("name", "n", "title"), [("one", 0, None)])
    assert select(database, "SELECT frontier FROM run", 10)[1] == [("01ff",)]
    assert select(
        database, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT i FROM n", 3
    )[1] == [(1,), (2,), (3,)]


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


def test_a_statement_that_takes_too_long_ends(database: WorkloadDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_sql, "SECONDS", 1)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(UsageError, match="takes longer than 1 seconds; ask for less"):
        select(database, endless, 10)

"""What other programs open: Parquet in DuckDB, the file and the useful queries in Datasette, the page of the views."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlalchemy as sa

from scripts.database_page import PAGE, written
from tallystick.database.indexing.add import add_place
from tallystick.database.schema import VIEWS
from tallystick.database.sql import USEFUL_QUERIES, datasette_metadata, export_parquet, select
from tallystick.database.workload_database import WorkloadDatabase


@pytest.fixture
def added(empty: WorkloadDatabase, honest: Path) -> WorkloadDatabase:
    """A database that holds the honest run."""
    add_place(empty, honest, "digits")
    return empty


def test_duckdb_reads_every_view_as_it_is(added: WorkloadDatabase, tmp_path: Path) -> None:
    counts = export_parquet(added, tmp_path / "out")
    assert counts.keys() == VIEWS.keys()
    for name, count in counts.items():
        found = select(added, f'SELECT * FROM "{name}"', 100_000)
        theirs = duckdb.sql(f"SELECT * FROM '{tmp_path}/out/{name}.parquet'")
        assert (tuple(theirs.columns), len(found.rows)) == (found.columns, count)
        assert sorted(map(shown, theirs.fetchall())) == sorted(map(shown, found.rows))


def shown(row: tuple[Any, ...]) -> list[str]:
    """Values as text; SQLite has no booleans of its own."""
    return [str(int(value)) if isinstance(value, bool) else str(value) for value in row]


def test_useful_queries_say_the_same_in_duckdb(added: WorkloadDatabase, tmp_path: Path) -> None:
    export_parquet(added, tmp_path / "out")
    with duckdb.connect() as theirs:
        for name in VIEWS:
            theirs.execute(f"CREATE VIEW \"{name}\" AS SELECT * FROM '{tmp_path}/out/{name}.parquet'")
        for query in USEFUL_QUERIES:
            ours = select(added, query.sql, 1000)
            found = theirs.execute(query.sql)
            assert tuple(each[0] for each in found.description or ()) == ours.columns, query.name
            assert list(map(shown, found.fetchall())) == list(map(shown, ours.rows)), query.name


def test_datasette_opens_the_file_and_answers_the_queries(honest: Path, tmp_path: Path) -> None:
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as database:
        add_place(database, honest, "digits", tensors=False)
    (tmp_path / "queries.json").write_text(json.dumps(datasette_metadata("tally")))
    paths = ["/tally/steps.json", *(f"/tally/{each.name}.json" for each in USEFUL_QUERIES)]
    ask = f"""
import asyncio, json
from datasette.app import Datasette
async def ask():
    found = Datasette(["tally.db"], metadata=json.load(open("queries.json")))
    await found.invoke_startup()
    for path in {paths}:
        answer = await found.client.get(path)
        print(answer.status_code, path, len(answer.json()["rows"]))
asyncio.run(ask())
"""
    done = subprocess.run([sys.executable, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["200 /tally/steps.json 12", "200 /tally/runs_and_verdicts.json 1"]
    assert len(lines) == 1 + len(USEFUL_QUERIES)
    assert all(line.startswith("200 ") for line in lines)


def test_the_page_shows_the_views_and_queries_that_there_are() -> None:
    """`python scripts/database_page.py` writes it anew."""
    assert written(PAGE.read_text()) == PAGE.read_text()


def test_useful_queries_are_answered_on_both_databases(added: WorkloadDatabase) -> None:
    found = {query.name: select(added, query.sql, 10).rows for query in USEFUL_QUERIES}
    assert found["runs_and_verdicts"] == [("digits", "claimed", 12, 0, 0, 0)]
    assert found["runs_without_an_accepted_audit"] == [("digits", "claimed", 12)]
    with added.writing("") as connection:
        connection.execute(sa.text("UPDATE anchor SET present = (1 = 0) WHERE step = 4"))
    assert [row[:2] for row in select(added, USEFUL_QUERIES[4].sql, 10).rows] == [("digits", 4)]

"""Empty workload databases, on each of the two kinds; a conftest imports the fixtures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tallystick.database.workload_database import WorkloadDatabase
from tests.support.postgresql import create, database, server

FORM = "form"
"""The database of PostgreSQL that others are copied from."""


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that holds nothing; where a test asks for `empty` too, one with tables and no rows."""
    with_tables = "empty" in request.fixturenames
    if request.param == "sqlite":
        if with_tables:
            (tmp_path / "tally.db").write_bytes(_file_with_tables())
        yield f"sqlite:///{tmp_path}/tally.db"
        return
    with database(_form_with_tables() if with_tables else "template1") as url:
        yield url


@pytest.fixture
def empty(place: str) -> Iterator[WorkloadDatabase]:
    """A workload database without rows."""
    with WorkloadDatabase(place, writable=True) as found:
        yield found


@cache
def _file_with_tables() -> bytes:
    """Making the tables is most of the work of a small test: it is done once, and copied."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tally.db"
        WorkloadDatabase(path, writable=True).close()
        return path.read_bytes()


@cache
def _form_with_tables() -> str:
    create(FORM)
    WorkloadDatabase(f"{server()}/{FORM}", writable=True).close()
    return FORM

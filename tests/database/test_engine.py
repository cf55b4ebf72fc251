"""A copy of a database that can only be read, and URLs whose passwords no message shows."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.sql import SqlEngine
from tallystick.database.bulk import inserted
from tallystick.database.schema import SOURCE
from tallystick.database.sql import select
from tallystick.database.workload_database import WorkloadDatabase

NOBODY = 65534


@contextmanager
def anybody() -> Iterator[None]:
    """As a user who is not root: for root, no folder is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user reaches."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def filled(path: Path) -> WorkloadDatabase:
    database = WorkloadDatabase(path, writable=True)
    with database.writing("") as connection:
        inserted(connection, SOURCE, kind="run", name="one", place="/runs/one")
    return database


def seal(folder: Path) -> None:
    for each in folder.iterdir():
        each.chmod(0o444)
    folder.chmod(0o555)


def names_in(path: Path) -> list[str]:
    with WorkloadDatabase(path) as database:
        with database.sql.reading() as connection:
            read = list(connection.execute(sa.select(SOURCE.c.name)).scalars())
        assert select(database, "SELECT name FROM source", 9).rows == [(name,) for name in read]
        return read


@pytest.mark.parametrize("name", ["tally.db", "a b?c#d.db"])
def test_a_copy_in_a_folder_that_cannot_be_written_is_read(folder: Path, name: str) -> None:
    filled(folder / name).close()
    seal(folder)
    with anybody():
        assert names_in(folder / name) == ["one"]


def test_a_copy_with_the_files_of_a_writer_beside_it_shows_what_is_in_them(folder: Path) -> None:
    with closing(filled(folder / "tally.db")):
        shutil.copytree(folder, folder / "copy")
    assert (folder / "copy" / "tally.db-wal").stat().st_size > 0
    seal(folder / "copy")
    with anybody():
        assert names_in(folder / "copy" / "tally.db") == ["one"]


def test_a_copy_without_one_of_these_files_says_how_it_can_be_read(folder: Path) -> None:
    with closing(filled(folder / "tally.db")):
        shutil.copytree(folder, folder / "copy")
    (folder / "copy" / "tally.db-shm").unlink()
    seal(folder / "copy")
    mend = "tally.db: its folder cannot be written: copy it with the files -wal and -shm beside it into a folder"
    with anybody(), pytest.raises(UnavailableError, match=mend):
        names_in(folder / "copy" / "tally.db")


def test_a_file_that_cannot_be_written_is_read_and_not_written(folder: Path) -> None:
    filled(folder / "tally.db").close()
    (folder / "tally.db").chmod(0o444)
    folder.chmod(0o777)
    with anybody():
        assert names_in(folder / "tally.db") == ["one"]
        with pytest.raises(UnavailableError, match="readonly"):
            filled(folder / "tally.db")


@pytest.mark.parametrize(
    "url", ["mysql://ada:secret@host/runs", "oracle+x://ada:secret@host", "what://ada:secret@h:x/"]
)
def test_a_url_that_is_refused_shows_no_password(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        SqlEngine(url, "workloads")
    assert "secret" not in str(refused.value)
    assert "ada:***@h" in str(refused.value)

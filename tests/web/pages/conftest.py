from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tallystick.api.database import Database
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.web.pages.application import create_pages
from tests.support.attacks.disputes.scene import TRAINED
from tests.support.attacks.reference import train_by
from tests.support.workload_scene import add_timeline, fill
from tests.web.pages.addresses import Addresses
from tests.web.pages.recording import Recording


@pytest.fixture(scope="session")
def filled(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a run and its audits; read it, and never write into it."""
    folder = tmp_path_factory.mktemp("pages")
    train_by(TRAINED, folder / "run")
    place = folder / "tally.db"
    with WorkloadDatabase(place, writable=True) as database:
        fill(database, folder / "run")
        root = Database(database).graphs.first(1).one().root
        add_timeline(database, folder / "timeline", root)
    return place


@pytest.fixture(scope="session")
def database(filled: Path) -> Iterator[Database]:
    with Database(WorkloadDatabase(filled)) as found:
        yield found


@pytest.fixture(scope="session")
def client(database: Database) -> Iterator[TestClient]:
    with TestClient(create_pages(database)) as found:
        yield found


@pytest.fixture(scope="session")
def addresses(database: Database) -> Addresses:
    """What each page is asked for."""
    return Addresses(database)


@pytest.fixture
def recording(filled: Path, tmp_path: Path) -> Recording:
    """A copy of the run of the scene, to be recorded again."""
    return Recording(Path(shutil.copytree(filled.with_name("run"), tmp_path / "run")))

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tallystick.database.pages.router import create_pages
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.tally.database import Database
from tests.database.pages.addresses import Addresses
from tests.database.pages.recording import Recording
from tests.recording.serving.conftest import loopback_only as loopback_only
from tests.support.attacks.disputes.scene import TRAINED
from tests.support.attacks.reference import train_by
from tests.support.services import service as service, unheard as unheard
from tests.support.workload_scene import add_timeline, fill


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

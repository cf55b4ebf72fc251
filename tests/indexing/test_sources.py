"""What is forgotten takes nothing along that another run names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tallystick.api.database import Database
from tallystick.errors import UnavailableError
from tallystick.indexing.add import add_place
from tallystick.indexing.sources import forget_source
from tallystick.store.database.workload_database import WorkloadDatabase
from tests.support.small_loop import record_small_loop


def test_a_graph_that_two_runs_name_is_known_by_the_one_that_stays(empty: WorkloadDatabase, tmp_path: Path) -> None:
    first = record_small_loop(tmp_path / "first")
    second = Path(shutil.copytree(first, tmp_path / "second"))
    for run in (first, second):
        add_place(empty, run, tensors=False)
    found = Database(empty).graphs.first(1).one().place
    assert found is not None
    assert found.startswith(str(first))
    with empty.writing("") as connection:
        forget_source(connection, "first")
    assert Database(empty).graphs.first(1).one().place == found.replace(str(first), str(second))
    with empty.writing("") as connection:
        forget_source(connection, "second")
        with pytest.raises(UnavailableError, match="nothing in the database"):
            forget_source(connection, "second")
    assert Database(empty).graphs.first(1).one().place is None

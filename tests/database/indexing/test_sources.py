"""What is forgotten takes nothing along that another run names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.sources import forget_source
from tallystick.database.query import DatabaseQueries
from tallystick.database.workload_database import WorkloadDatabase
from tests.support.small_loop import record_small_loop
from tests.support.traces import kernel, trace_at


def test_a_graph_that_two_runs_name_is_known_by_the_one_that_stays(empty: WorkloadDatabase, tmp_path: Path) -> None:
    first = record_small_loop(tmp_path / "first")
    second = Path(shutil.copytree(first, tmp_path / "second"))
    for run in (first, second):
        add_place(empty, run, tensors=False)
    found = DatabaseQueries(empty).graphs.first(1).one().place
    assert found is not None
    assert found.startswith(str(first))
    with empty.writing("") as connection:
        forget_source(connection, "first")
    assert DatabaseQueries(empty).graphs.first(1).one().place == found.replace(str(first), str(second))
    with empty.writing("") as connection:
        forget_source(connection, "second")
        with pytest.raises(UnavailableError, match="nothing in the database"):
            forget_source(connection, "second")
    assert DatabaseQueries(empty).graphs.first(1).one().place is None


@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\u202eb", "a\0b", "a\nb", "x" * 257, "\udcff"])
def test_a_name_that_is_no_line_of_text_is_refused_and_leaves_nothing(
    empty: WorkloadDatabase, tmp_path: Path, name: str
) -> None:
    trace = trace_at(tmp_path / "first", [kernel(5, 9)])
    with pytest.raises(UsageError, match="control characters") as refusal:
        add_place(empty, trace.path, name)
    assert str(refusal.value).isprintable()
    assert DatabaseQueries(empty).traces.count() == 0


@pytest.mark.parametrize("name", ["<b>ü & 名 '\"", "../../etc", "x" * 256])
def test_any_other_name_is_kept(empty: WorkloadDatabase, tmp_path: Path, name: str) -> None:
    assert add_place(empty, trace_at(tmp_path / "first", [kernel(5, 9)]).path, name) == name
    assert DatabaseQueries(empty).traces.where(name=name).one().name == name


def test_a_path_that_is_no_text_is_refused(empty: WorkloadDatabase, tmp_path: Path) -> None:
    trace = trace_at(tmp_path / "a\udcffb", [kernel(5, 9)])
    with pytest.raises(UsageError, match="not; rename it"):
        add_place(empty, trace.path)


def test_a_folder_of_several_traces_says_how_to_add_them(empty: WorkloadDatabase, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(UnavailableError, match="a run directory, a trace"):
        add_place(empty, tmp_path)
    trace_at(tmp_path / "first", [kernel(5, 9)])
    with pytest.raises(UnavailableError, match=r"`tally db add .*/\*`"):
        add_place(empty, tmp_path)


def test_a_value_that_no_field_can_hold_is_refused_in_one_line(empty: WorkloadDatabase) -> None:
    for value in ("x" * 5000, object()):
        with pytest.raises(UsageError, match="no text of at most 4096"):
            DatabaseQueries(empty).runs.where(name=value)

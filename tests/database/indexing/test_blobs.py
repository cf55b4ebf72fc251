"""Anchors and batches in a store of blobs: stored, fetched back, checked, and collected when nothing refers to them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.tensor_digests import digest_state, state_digest
from tallystick.database.indexing import storing
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.checking import blob_findings, check, rebuild
from tallystick.database.indexing.discovery import discover
from tallystick.database.indexing.sources import forget_source
from tallystick.database.indexing.storing import (
    Fate,
    collect,
    problem_of,
    restore_files,
    store_files,
    stored_files,
    unreferenced,
)
from tallystick.database.query import DatabaseQueries
from tallystick.database.replayable import ReplayKind
from tallystick.database.schema import ANCHOR, STORED_FILE
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.store.blobs import Blobs, blob_digest
from tallystick.formats.store.keeping import AnchorWriter, thin_anchors
from tallystick.formats.store.run import Anchors, RunDirectory
from tests.support.blob_stores import change_blob, flipped, url as url
from tests.support.small_loop import record_small_loop

MEND = "`tally db restore RUN --blobs URL`"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loop with states after 0, 4, 8 and 10, and a batch for each of its ten steps. Never write into it."""
    return record_small_loop(tmp_path_factory.mktemp("loop") / "run")


@pytest.fixture
def loop(recorded: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(recorded, tmp_path / "loop"))


@pytest.fixture
def added(tmp_path: Path, loop: Path) -> WorkloadDatabase:
    """A database on SQLite that holds the loop."""
    database = WorkloadDatabase(tmp_path / "tally.db", writable=True)
    add_place(database, loop)
    return database


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """An empty store."""
    return Blobs(str(tmp_path / "store"))


def replays(database: WorkloadDatabase) -> set[ReplayKind]:
    return {each.replay for each in discover(database, "loop").ranges}


def files(run: Path) -> dict[str, bytes]:
    found = [*(run / "anchors").glob("*"), *(run / "batches").glob("*")]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in found}


def test_what_was_stored_comes_back_and_is_replayed(added: WorkloadDatabase, loop: Path, url: str) -> None:
    before = files(loop)
    stored = store_files(added, "loop", Blobs(url)).stored
    assert {each.file: each.blob for each in stored} == {file: blob_digest(data) for file, data in before.items()}
    rows = {row.file: (row.blob, row.bytes) for row in DatabaseQueries(added).about("stored_files").where(run="loop")}
    assert rows == {file: (blob_digest(data), len(data)) for file, data in before.items()}
    shutil.rmtree(loop / "anchors")
    shutil.rmtree(loop / "batches")
    add_place(added, loop)
    assert replays(added) == {ReplayKind.MISSING}
    assert all(MEND in each.mend for each in discover(added, "loop").ranges)
    report = restore_files(added, "loop", Blobs(url))
    assert {each.file for each in report.fetched} == before.keys()
    assert (files(loop), problem_of("loop", report), replays(added)) == (before, None, {ReplayKind.EXACT})
    assert restore_files(added, "loop", Blobs(url)).fetched == []
    assert check(added, blobs=Blobs(url)).findings == []


def test_only_what_steps_need_is_fetched(added: WorkloadDatabase, loop: Path, url: str) -> None:
    store_files(added, "loop", Blobs(url))
    shutil.rmtree(loop / "anchors")
    shutil.rmtree(loop / "batches")
    restore_files(added, "loop", Blobs(url), (5, 6))
    names = files(loop)
    assert sorted(each for each in names if each.startswith("anchors")) == [
        "anchors/step_00000004.safetensors",
        "anchors/step_00000008.safetensors",
    ]
    assert len(names) == 4
    assert discover(added, "loop").of(5).replay is not ReplayKind.MISSING


@pytest.mark.parametrize("edit", [flipped, lambda data: data + b"0"])
def test_a_damaged_blob_is_named_and_nothing_takes_its_place(
    added: WorkloadDatabase, loop: Path, url: str, edit: Callable[[bytes], bytes]
) -> None:
    blobs, file = Blobs(url), "anchors/step_00000004.safetensors"
    store_files(added, "loop", blobs)
    with added.sql.reading() as connection:
        name = stored_files(connection, "loop")[file].blob
    change_blob(url, name, edit)
    kept = (loop / file).read_bytes()
    (loop / file).unlink()
    (loop / "anchors/step_00000008.safetensors").unlink()
    report = restore_files(added, "loop", blobs)
    assert [each.file for each in report.fetched] == ["anchors/step_00000008.safetensors"]
    assert not (loop / file).exists()
    assert [*report.damaged, *report.lacking] == [file]
    assert isinstance(problem_of("loop", report), ProofError | UnavailableError)
    assert [line.partition(": blob")[0] for line in check(added, blobs=blobs).findings] == [f"loop: {file}"]
    (loop / file).write_bytes(kept)
    store_files(added, "loop", blobs, again=True)
    add_place(added, loop)
    assert check(added, blobs=blobs).findings == []


def test_a_database_that_does_not_answer_says_nothing_about_a_file(
    added: WorkloadDatabase, loop: Path, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = next(each for each in store_files(added, "loop", blobs).stored if each.mark == 4)
    directory = RunDirectory(loop)
    assert storing.is_as_recorded(added, "loop", directory, stored)

    def refuse(run: str, column: object) -> None:
        raise UnavailableError("the database does not answer")

    monkeypatch.setattr(storing, "of_run", refuse)
    with pytest.raises(UnavailableError, match="does not answer"):
        storing.is_as_recorded(added, "loop", directory, stored)


def test_a_missing_blob_is_said_to_be_missing(added: WorkloadDatabase, loop: Path, blobs: Blobs) -> None:
    lost = store_files(added, "loop", blobs).stored[0]
    blobs.delete(lost.blob)
    (loop / lost.file).unlink()
    report = restore_files(added, "loop", blobs)
    assert "missing" in report.lacking[lost.file]
    assert isinstance(problem_of("loop", report), UnavailableError)
    assert check(added, quick=True, blobs=blobs).findings == [f"loop: {lost.file}: blob {lost.blob} is missing"]


def test_a_row_that_was_changed_writes_nothing_outside_the_run(
    added: WorkloadDatabase, loop: Path, blobs: Blobs
) -> None:
    store_files(added, "loop", blobs)
    with added.writing("") as connection:
        one = sa.select(sa.func.min(STORED_FILE.c.file)).scalar_subquery()
        connection.execute(sa.update(STORED_FILE).where(STORED_FILE.c.file == one).values(file="anchors/../../outside"))
    with pytest.raises(MalformedError, match="which is no anchor or batch"):
        restore_files(added, "loop", blobs)
    assert not (loop.parent / "outside").exists()


def test_a_row_that_names_another_blob_is_found(added: WorkloadDatabase, loop: Path, blobs: Blobs) -> None:
    one, other = [each for each in store_files(added, "loop", blobs).stored if each.mark is not None][1:3]
    with added.writing("") as connection:
        of_file = sa.update(STORED_FILE).where(STORED_FILE.c.file == one.file)
        connection.execute(of_file.values(blob=other.blob, bytes=other.bytes))
    assert any(f"loop: {one.file}: is {one.blob}" in line for line in check(added, blobs=blobs).findings)
    (loop / one.file).unlink()
    report = restore_files(added, "loop", blobs)
    assert "not what its record states" in report.damaged[one.file]
    assert not (loop / one.file).exists()


def test_a_damaged_file_does_not_replace_what_was_stored(added: WorkloadDatabase, loop: Path, blobs: Blobs) -> None:
    first = {each.file: each for each in store_files(added, "loop", blobs).stored}
    anchor, batch = loop / "anchors/step_00000004.safetensors", next((loop / "batches").iterdir())
    for path in (anchor, batch):
        path.write_bytes(flipped(path.read_bytes()))
    report = store_files(added, "loop", blobs)
    assert len(report.differing) == 2
    with added.sql.reading() as connection:
        assert stored_files(connection, "loop") == first
    with added.writing("") as connection:
        connection.execute(sa.update(STORED_FILE).values(blob=blob_digest(b"")))
    assert store_files(added, "loop", blobs).differing == report.differing  # whole files take the place of wrong rows
    with added.sql.reading() as connection:
        now = stored_files(connection, "loop")
    assert sum(now[file] == first[file] for file in first) == len(first) - 2


def test_anchors_in_parts_come_back_whole_after_thinning(added: WorkloadDatabase, loop: Path, blobs: Blobs) -> None:
    marks = (0, 4, 8, 10)
    states = {mark: Anchors(loop).read(mark) for mark in marks}
    shutil.rmtree(loop / "anchors")
    frozen = next(iter(states[0]))
    for mark in marks:
        states[mark][frozen] = states[0][frozen]
        with added.writing("") as connection:
            of_mark = sa.update(ANCHOR).where(ANCHOR.c.step == mark)
            connection.execute(of_mark.values(digest=state_digest(states[mark])))
    writer = AnchorWriter(loop, least_saved=0, least_share=0.0)
    for mark, state in states.items():
        writer.write(mark, state, digest_state(state))
    before = files(loop)
    assert any(name.endswith(".json") for name in before)
    store_files(added, "loop", blobs)
    thin_anchors(loop, marks, {0, 10})
    assert store_files(added, "loop", blobs).differing == []
    restore_files(added, "loop", blobs, (5, 8))
    assert state_digest(Anchors(loop).read(8)) == state_digest(states[8])
    assert problem_of("loop", restore_files(added, "loop", blobs)) is None
    assert files(loop).items() >= before.items()


def test_collecting_keeps_what_a_run_refers_to(empty: WorkloadDatabase, loop: Path, blobs: Blobs) -> None:
    add_place(empty, loop)
    used = {each.blob for each in store_files(empty, "loop", blobs).stored}
    unused = blobs.put(b"nobody")
    soon = 2.0**40
    assert [(each.blob, each.fate) for each in unreferenced(empty, blobs, 0.0)] == [(unused, Fate.YOUNG)]
    assert [(each.blob, each.fate) for each in unreferenced(empty, blobs, None)] == [(unused, Fate.UNUSED)]
    assert [each.fate for each in collect(empty, blobs, 0.0)] == [Fate.YOUNG]
    assert {*blobs.digests()} == {*used, unused}
    assert [each.fate for each in collect(empty, blobs, soon)] == [Fate.DELETED]
    assert {*blobs.digests()} == used
    assert list(collect(empty, blobs, None)) == []


def test_a_run_whose_directory_is_gone_is_still_referred_to(empty: WorkloadDatabase, loop: Path, blobs: Blobs) -> None:
    add_place(empty, loop)
    used = {each.blob for each in store_files(empty, "loop", blobs).stored}
    shutil.rmtree(loop)
    assert "loop" in rebuild(empty).lacking
    assert list(collect(empty, blobs, None)) == []
    assert {*blobs.digests()} == used


def test_what_was_forgotten_is_collected_and_what_runs_share_stays(
    added: WorkloadDatabase, loop: Path, tmp_path: Path, blobs: Blobs
) -> None:
    twin = Path(shutil.copytree(loop, tmp_path / "twin"))
    (twin / "anchors/step_00000004.safetensors").unlink()
    add_place(added, twin)
    for name in ("loop", "twin"):
        store_files(added, name, blobs)
    with added.writing("") as connection:
        forget_source(connection, "loop")
    anchor = blob_digest(loop / "anchors/step_00000004.safetensors")
    assert [each.blob for each in collect(added, blobs, None)] == [anchor]
    with added.sql.reading() as connection:
        assert list(blob_findings(connection, blobs)) == []


def test_the_store_of_another_database_is_left_alone(added: WorkloadDatabase, blobs: Blobs) -> None:
    name = blobs.put(b"of another")
    with pytest.raises(UsageError, match="the store of another one"):
        list(collect(added, blobs, None))
    assert list(blobs.digests()) == [name]


def test_what_is_collected_while_it_is_stored_is_stored_again(
    added: WorkloadDatabase, loop: Path, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, waiting = storing._noted, {"once"}

    def late(*words: object) -> bool:
        if waiting:
            waiting.pop()
            blobs.delete(next(blobs.digests()))
        return noted(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(storing, "_noted", late)
    assert len(store_files(added, "loop", blobs).stored) == len(files(loop))
    assert check(added, blobs=blobs).findings == []

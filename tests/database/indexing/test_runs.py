"""What `tally db add` reads of a run, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.database.indexing import runs
from tallystick.database.indexing.add import add_place
from tallystick.database.query import DatabaseQueries
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.records import StepRecord, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory
from tests.support.database_content import content


def test_a_run_is_read_as_it_was_recorded(empty: WorkloadDatabase, honest: Path) -> None:
    assert add_place(empty, honest) == honest.name
    found, run = DatabaseQueries(empty), RunDirectory(honest)
    row = found.runs.one()
    claim = run.claim()
    assert (row.status, row.claim, row.transcript) == ("claimed", claim.identity, claim.transcript.root)
    records = [read_record(line, "record") for line in read_lines(run.transcript_path)]
    steps = [record for record in records if isinstance(record, StepRecord)]
    assert [(step.step, step.loss) for step in found.steps] == [(step.index, step.loss) for step in steps]
    assert [record.kind for record in found.records] == [record.kind for record in records]
    assert all(step.seconds is not None for step in found.steps)
    last = found.anchors.newest_first().first(1).one()
    assert (last.digest, last.present) == (claim.final_state, True)
    assert found.bindings.where(step=last.step, moment="after").count() > 0


def test_a_second_reading_changes_nothing(empty: WorkloadDatabase, honest: Path) -> None:
    add_place(empty, honest)
    before = content(empty)
    add_place(empty, honest)
    assert content(empty) == before


def test_a_reading_that_was_interrupted_is_gone_on_with(
    empty: WorkloadDatabase, honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "BATCH", 3)
    written = runs._write_records

    def interrupted(*arguments: Any) -> None:
        written(*arguments)
        if arguments[3][0].behind.lines > 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_write_records", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add_place(empty, honest)
    assert 0 < DatabaseQueries(empty).records.count() < 10
    monkeypatch.setattr(runs, "_write_records", written)
    add_place(empty, honest)
    assert DatabaseQueries(empty).records.count() == RunDirectory(honest).claim().transcript.size


def test_a_run_that_goes_on_is_read_on(empty: WorkloadDatabase, run: Path) -> None:
    transcript, claim = run / "transcript.jsonl", run / "claim.json"
    whole, claimed = transcript.read_bytes(), claim.read_bytes()
    half = whole.index(b"\n", len(whole) // 2) + 1
    transcript.write_bytes(whole[: half + 7])  # the next line is being written
    claim.unlink()
    add_place(empty, run)
    found = DatabaseQueries(empty)
    assert (found.runs.one().status, found.records.count()) == ("recording", whole[:half].count(b"\n"))
    transcript.write_bytes(whole)
    claim.write_bytes(claimed)
    add_place(empty, run)
    assert (found.runs.one().status, found.records.count()) == ("claimed", whole.count(b"\n"))


def test_a_time_that_was_written_after_its_record_was_read_is_added(empty: WorkloadDatabase, run: Path) -> None:
    whole = (run / "trace.jsonl").read_bytes()
    (run / "trace.jsonl").write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    add_place(empty, run)
    steps = DatabaseQueries(empty).steps
    assert [step.seconds is None for step in steps] == [False] * (steps.count() - 1) + [True]
    (run / "trace.jsonl").write_bytes(whole)
    add_place(empty, run)
    assert all(step.seconds is not None for step in steps)


def test_records_that_a_recorder_cut_off_are_forgotten(empty: WorkloadDatabase, run: Path) -> None:
    transcript = run / "transcript.jsonl"
    whole = transcript.read_bytes()
    (run / "claim.json").unlink()
    add_place(empty, run)
    shorter = whole[: whole.rindex(b"\n", 0, -1) + 1]
    transcript.write_bytes(shorter)
    add_place(empty, run)
    assert DatabaseQueries(empty).records.count() == shorter.count(b"\n")


def test_a_record_that_was_changed_since_is_refused(
    empty: WorkloadDatabase, run: Path, rewrite: Callable[..., None]
) -> None:
    add_place(empty, run)
    before = content(empty)

    def change(records: list[dict[str, Any]]) -> None:
        records[3]["loss"] = 1.0

    rewrite(run, change)
    with pytest.raises(MalformedError, match=r"record 3 of transcript\.jsonl is not the one in the database"):
        add_place(empty, run)
    assert content(empty) == before


def test_a_state_that_is_not_the_recorded_one_is_refused(empty: WorkloadDatabase, run: Path) -> None:
    anchors = sorted((run / "anchors").iterdir())
    shutil.copy(anchors[0], anchors[-1])
    with pytest.raises(MalformedError, match="the state has digest"):
        add_place(empty, run)


def test_names(empty: WorkloadDatabase, honest: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(honest, tmp_path / "copies" / honest.name)
    add_place(empty, honest)
    with pytest.raises(UsageError, match="another name with --name"):
        add_place(empty, copy)
    assert add_place(empty, copy, "again") == "again"
    with pytest.raises(UsageError, match="in the database already, as again"):
        add_place(empty, copy, "third")
    assert [run.name for run in DatabaseQueries(empty).runs] == [honest.name, "again"]


def test_a_folder_that_holds_no_run_is_refused(empty: WorkloadDatabase, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"a run directory, a trace, .* is asked for"):
        add_place(empty, tmp_path)
    assert DatabaseQueries(empty).runs.count() == 0


def test_a_step_that_stands_twice_is_refused(empty: WorkloadDatabase, run: Path) -> None:
    lines = (run / "transcript.jsonl").read_bytes().splitlines(keepends=True)
    step = next(line for line in lines if b'"kind":"step"' in line)
    (run / "transcript.jsonl").write_bytes(b"".join([*lines, step]))
    with pytest.raises(MalformedError, match="states one thing twice"):
        add_place(empty, run, tensors=False)
    (run / "transcript.jsonl").write_bytes(b"".join(lines))
    assert add_place(empty, run, tensors=False) == run.name

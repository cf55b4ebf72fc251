"""Readings that are killed, and several at once: the database holds the same in the end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.api.database import Database
from tallystick.commitments.digests import digest
from tallystick.errors import ProofError
from tallystick.indexing.add import add_place
from tallystick.indexing.checking import check
from tallystick.indexing.documents import keep_document
from tallystick.indexing.sources import places_of
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.traces import StoredEvent, TraceFolder
from tests.support.traces import kernel, trace_at


def adding(url: str, run: Path, name: str, *statement: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.adding", url, str(run), name, *statement]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def test_readings_that_are_killed_are_gone_on_with(place: str, honest: Path) -> None:
    for statement in ("3", "17", "30", "25"):  # each begins where the last one was killed
        process = adding(place, honest, "digits", statement)
        _, said = process.communicate()
        assert process.returncode == -signal.SIGKILL, said
    with WorkloadDatabase(place, writable=True) as database:
        assert Database(database).records.count() > 0
        add_place(database, honest, "digits")
        report = check(database)
    assert (report.findings, report.unchecked) == ([], [])


def test_many_processes_write_at_once(place: str, honest: Path, plain: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(honest, tmp_path / "copy"))
    runs = [(honest, "digits"), (plain, "plain"), (honest, "digits"), (copy, "copy")]
    WorkloadDatabase(place, writable=True).close()
    processes = [adding(place, run, name) for run, name in runs]
    for process in processes:
        _, said = process.communicate()
        assert process.returncode == 0, said
    with WorkloadDatabase(place) as database:
        report = check(database)
        assert Database(database).runs.count() == 3
    assert (report.findings, report.unchecked) == ([], [])


def test_others_write_while_a_trace_is_read(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trace_at(tmp_path / "first", [kernel(5, 9), kernel(20, 9)])
    read = TraceFolder.rows

    with WorkloadDatabase(place, writable=True) as database, WorkloadDatabase(place) as other:

        def while_read(self: TraceFolder) -> Iterator[StoredEvent]:
            for each in read(self):
                with other.writing(str(folder.path)) as connection:
                    keep_document(connection, "spec", digest("spec", str(each.place).encode()), b"{}")
                yield each

        monkeypatch.setattr(TraceFolder, "rows", while_read)
        assert add_place(database, folder.path) == "first"
        assert (Database(database).events.count(), Database(database).traces.one().events) == (2, 2)


def test_a_trace_with_other_events_than_stated_leaves_nothing(place: str, tmp_path: Path) -> None:
    folder = trace_at(tmp_path / "first", [kernel(5, 9), kernel(20, 9)])
    lines = folder.events_path.read_bytes().splitlines(keepends=True)
    folder.events_path.write_bytes(lines[0] * 2)
    with WorkloadDatabase(place, writable=True) as database:
        with pytest.raises(ProofError, match="not those under the root"):
            add_place(database, folder.path)
        assert Database(database).events.count() == Database(database).traces.count() == 0
        with database.sql.reading() as connection:
            assert places_of(connection) == ()

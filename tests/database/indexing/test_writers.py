"""Readings that are killed, and several at once: the database holds the same in the end."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import ProofError
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.checking import check
from tallystick.database.indexing.sources import keep_document, places_of
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.store.traces import TraceEvent, TraceFolder
from tallystick.tally.database import Database
from tests.support.traces import kernel, trace_at


def adding(url: str, how: str, *jobs: tuple[Path, str, str]) -> list[int]:
    """How each process ended that added a place by a name, killed in front of a statement where one is given."""
    words = [str(word) for job in jobs for word in job]
    command = [sys.executable, "-m", "tests.support.adding", url, how, *words]
    codes: list[int] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return codes


def test_readings_that_are_killed_are_gone_on_with(place: str, honest: Path) -> None:
    statements = ("3", "17", "30", "25")  # each begins where the last one was killed
    ends = adding(place, "turn", *((honest, "digits", statement) for statement in statements))
    assert ends == [-signal.SIGKILL] * 4
    with WorkloadDatabase(place, writable=True) as database:
        assert Database(database).records.count() > 0
        add_place(database, honest, "digits")
        report = check(database)
    assert (report.findings, report.unchecked) == ([], [])


def test_many_processes_write_at_once(place: str, honest: Path, plain: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(honest, tmp_path / "copy"))
    runs = [(honest, "digits", ""), (plain, "plain", ""), (honest, "digits", ""), (copy, "copy", "")]
    WorkloadDatabase(place, writable=True).close()
    assert adding(place, "once", *runs) == [0] * 4
    with WorkloadDatabase(place) as database:
        report = check(database)
        assert Database(database).runs.count() == 3
    assert (report.findings, report.unchecked) == ([], [])


def test_others_write_while_a_trace_is_read(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trace_at(tmp_path / "first", [kernel(5, 9), kernel(20, 9)])
    read = TraceFolder.events

    with WorkloadDatabase(place, writable=True) as database, WorkloadDatabase(place) as other:

        def while_read(self: TraceFolder) -> Iterator[TraceEvent]:
            for number, each in enumerate(read(self)):
                with other.writing(str(folder.path)) as connection:
                    keep_document(connection, "spec", digest("spec", str(number).encode()), b"{}")
                yield each

        monkeypatch.setattr(TraceFolder, "events", while_read)
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

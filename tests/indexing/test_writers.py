"""Readings that are killed, and several at once: the database holds the same in the end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tallystick.api.database import Database
from tallystick.indexing.add import add_place
from tallystick.indexing.checking import check
from tallystick.store.database.workload_database import WorkloadDatabase


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

"""Readings that are killed, and several at once: the database holds the same in the end."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tallystick.api.database import Database
from tallystick.indexing.add import add_place
from tallystick.indexing.checking import check
from tallystick.store.database.workload_database import WorkloadDatabase


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

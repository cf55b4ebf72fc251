"""One writer at a time, and what a killed one leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.formats.store.run import RunLock, lock_new_run

HOLDER = """
import sys, time
from pathlib import Path
from tallystick.formats.store.run import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_writer_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    with RunLock(tmp_path / "run"), pytest.raises(UnavailableError, match="another process records into it"):
        RunLock(tmp_path / "run")
    RunLock(tmp_path / "run").release()


def test_a_writer_that_was_killed_blocks_nobody(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UnavailableError):
        lock_new_run(tmp_path / "run")
    holder.kill()
    holder.communicate()
    lock_new_run(tmp_path / "run").release()


@pytest.mark.parametrize("left", [[], ["data/tokens.bin"], ["graphs/step.json", ".spec.json.draft"]])
def test_an_interrupted_beginning_is_cleared_and_begun_again(tmp_path: Path, left: list[str]) -> None:
    RunLock(tmp_path).release()
    for name in left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    lock_new_run(tmp_path).release()
    assert [path.name for path in tmp_path.iterdir()] == [".tally-lock"]


@pytest.mark.parametrize(
    "left", [["data/tokens.bin"], [".tally-lock", "spec.json"], [".tally-lock", "notes.txt", "data/mine"]]
)
def test_anything_else_is_left_alone(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    before = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="not empty"):
        lock_new_run(tmp_path)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == before

"""The forked `tally` of the tests is a program like the real one: words, folder, variables, streams, signals, codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("torch")
pytest.importorskip("sqlalchemy")

from tests.recording.serving.conftest import loopback_only
from tests.support.prefork.commands import commands

__all__ = ["loopback_only"]

ALONE = (sys.executable, "-m", "tallystick")


def forked() -> tuple[str, ...]:
    return (str(commands() / "tally"),)


def told(program: tuple[str, ...], *words: str, folder: Path, **variables: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*program, *words], cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [("--version",), ("no-such-command",), ("digest", "state.safetensors"), ("dispute", "play", "--help")],
    ids=lambda words: words[0],
)
def test_it_says_what_the_real_one_says(words: tuple[str, ...], tmp_path: Path) -> None:
    assert told(forked(), *words, folder=tmp_path) == told(ALONE, *words, folder=tmp_path)


def test_it_has_the_folder_and_the_variables_of_whoever_starts_it(tmp_path: Path) -> None:
    assert told(forked(), "new-key", "own.key", folder=tmp_path)[0] == 0
    assert (tmp_path / "own.key").exists()
    assert "Traceback" in told(forked(), "digest", "missing", folder=tmp_path, TALLY_TRACEBACK="1")[2]
    assert "Traceback" not in told(forked(), "digest", "missing", folder=tmp_path)[2]


def serving(folder: Path) -> subprocess.Popen[str]:
    """A server of disputes, which listens until it is ended."""
    assert told(forked(), "coordinator", "init", "--db", "court.db", folder=folder)[0] == 0
    words = ("coordinator", "serve", "--db", "court.db", "--port", "0")
    process = subprocess.Popen(
        [*forked(), *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    address = process.stdout.readline().split()[0]
    httpx.get(address, timeout=60)  # any answer: the address is told before the server takes signals
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signals_reach_it_and_its_code_comes_back(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = serving(tmp_path)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == code


def test_killed_it_is_dead_before_the_next_one_starts(tmp_path: Path) -> None:
    process = serving(tmp_path)
    process.kill()
    process.wait()
    told(forked(), "--version", folder=tmp_path)
    assert process.stderr
    os.set_blocking(process.stderr.fileno(), False)
    assert os.read(process.stderr.fileno(), 1) == b""  # nothing, and nobody who could still say something
    process.communicate()


SCRIPT = """
import json, sys
from pathlib import Path
print(json.dumps([__name__, sys.argv, Path.cwd().name, "tallystick.tally.cli" in sys.modules]))
import beside
sys.exit(beside.CODE)
"""


@pytest.mark.parametrize("code", ["0", "3", "'one line'", "1 / 0"])
def test_a_script_does_what_python_does_with_it(code: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(f"CODE = {code}")
    (tmp_path / "script.py").write_text(SCRIPT)
    ours, theirs = (
        told((python,), "script.py", "word", folder=tmp_path) for python in (str(commands() / "python"), sys.executable)
    )
    assert ours[:2] == theirs[:2]
    assert ours[2].splitlines()[-1:] == theirs[2].splitlines()[-1:]


def test_a_script_on_stdin_is_run() -> None:
    words = [str(commands() / "python"), "-"]
    done = subprocess.run(words, input="import tallystick; print(tallystick.__name__)", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "tallystick\n")

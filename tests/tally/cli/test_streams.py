"""Terminals without UTF-8, closed and full outputs, readers that leave: no traceback, and the code of the verdict."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.tally.cli import entry
from tallystick.tally.cli.entry import plainer
from tests.support.prefork.commands import commands

ALONE = (sys.executable, "-c", "from tallystick.tally.cli.entry import main; main()")
ASCII = [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]
FULL = Path("/dev/full")
LIMIT_BYTES = 512
"""The unit of `ulimit -f` in a POSIX shell."""


def run(
    words: list[object],
    closed: tuple[int, ...] = (),
    file_bytes: int | None = None,
    program: tuple[object, ...] = ALONE,
    **options: object,
) -> subprocess.CompletedProcess[bytes]:
    """`tally` as a process of its own, with some of its streams closed and its files limited.

    A shell does both: code between fork and exec would run in a process that other tests have filled with threads.
    """

    settings = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHONIO"))}
    given = options.pop("env", {})
    assert isinstance(given, dict)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    limit = "" if file_bytes is None else f"ulimit -f {file_bytes // LIMIT_BYTES}; "
    shell = f'{limit}exec "$0" "$@" ' + " ".join(f"{number}>&-" for number in closed)
    command = ["sh", "-c", shell, *map(str, (*program, *words))]
    return subprocess.run(command, env=settings | given, check=False, **streams)  # type: ignore[call-overload,no-any-return]


def forked() -> tuple[object, ...]:
    """A `tally` for commands that load PyTorch, which need not do so again."""
    return (commands() / "tally",)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    import numpy as np

    write_state(tmp_path / "state.safetensors", {"x": Tensor.of(np.zeros(3, np.float32))})
    return tmp_path / "state.safetensors"


def test_characters_that_a_terminal_lacks_are_written_in_others() -> None:
    import codecs

    codecs.register_error("test.plainer", plainer)
    text = "✓ 5 ≤ 7 … a – b “é” 日 \udcff µ² ½"
    assert text.encode("ascii", "test.plainer") == b'ok 5 <= 7 ... a - b "e" ? ? u2 12'
    assert text.replace("\udcff", "").encode("utf-8", "test.plainer").decode() == text.replace("\udcff", "")
    assert "\udcff".encode("utf-8", "test.plainer") == b"?"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "test.plainer")


@pytest.mark.parametrize("environment", ASCII, ids=["encoding", "locale"])
def test_a_terminal_of_ascii_gets_help_and_complaints_in_ascii(environment: dict[str, str]) -> None:
    told = run(["audit", "--help"], env=environment)
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"published: sha256:..." in told.stdout
    told = run(["audit", "né…/日"], env=environment)
    assert told.returncode == 4
    assert told.stderr.decode("ascii").startswith("tally: ")


def test_a_verdict_reaches_a_terminal_of_ascii_with_its_code(plain: Path) -> None:
    told = run(["audit", plain, "--samples", 1], env=ASCII[1])
    assert told.returncode == 0, told.stderr
    assert "ok" in told.stdout.decode("ascii")
    assert b"Traceback" not in told.stderr


def test_a_reader_that_leaves_ends_a_command_with_141(plain: Path) -> None:
    for words in (["--help"], ["targets", plain], ["economics"]):
        ours, theirs = os.pipe()
        os.close(ours)
        told = run(words, stdout=theirs)
        os.close(theirs)
        assert (told.returncode, told.stderr) == (141, b""), words


class Unread(io.StringIO):
    """An output whose reader is gone."""

    def flush(self) -> None:
        raise BrokenPipeError


def test_an_error_is_told_alone_where_the_output_has_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[bool] = []
    monkeypatch.setattr(entry, "close_stdout", lambda: dropped.append(True))
    for output, drops in ((Unread(), [True]), (io.StringIO(), [True])):
        monkeypatch.setattr(sys, "stdout", output)
        assert entry.run(["digest", "missing"]) == 4
        assert dropped == drops


@pytest.mark.skipif(not FULL.exists(), reason="the system has no file that is always full")
def test_output_that_nothing_takes_is_told_in_one_line(state: Path) -> None:
    with FULL.open("wb") as full:
        told = run(["digest", state], stdout=full)
        assert told.returncode == 4
        assert told.stderr == b"tally: No space left on device: the output\n"
        assert run(["digest", state], stderr=full).returncode == 0
        assert run(["digest", "missing"], stderr=full).returncode == 4


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_closed_stream_changes_no_exit_code(state: Path, closed: tuple[int, ...]) -> None:
    before = state.read_bytes()
    assert run(["digest", state], closed).returncode == 0
    assert run(["digest", "missing"], closed).returncode == 4
    assert state.read_bytes() == before


def test_talk_that_nobody_hears_ends_nothing(plain: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    told = run(["audit", plain, "--samples", 1], program=forked(), stderr=theirs)
    os.close(theirs)
    assert told.returncode == 0
    assert told.stdout.startswith(b"ACCEPTED")


def test_a_full_disk_leaves_no_half_model(plain: Path, tmp_path: Path) -> None:
    # In the configuration, in the weights.
    for command, limit in (("export-model", 200), ("export-model", 5_000), ("import-model", 5_000)):
        told = run([command, plain, tmp_path / "model"], file_bytes=limit, program=forked())
        assert told.returncode == 4
        lines = told.stderr.decode().splitlines()
        assert [line.startswith("tally: ") and "could not be written" in line for line in lines] == [True], lines
        assert list(tmp_path.iterdir()) == []
    assert run(["export-model", plain, tmp_path / "model"], program=forked()).returncode == 0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        each.name for each in (tmp_path / "model").iterdir()
    }


def test_a_full_disk_leaves_no_half_key_page_or_commitment(plain: Path, tmp_path: Path) -> None:
    told = run(["new-key", tmp_path / "key"], file_bytes=8)
    assert told.returncode == 4
    assert b"key: could not be written" in told.stderr
    assert run(["new-key", tmp_path / "key"]).returncode == 0
    page = ("--html", tmp_path / "page.html")
    told = run(["audit", plain, "--samples", 1, *page], file_bytes=64, program=forked())
    assert told.returncode == 4
    assert b"page.html: could not be written" in told.stderr
    assert run(["commit", plain, "--out", tmp_path / "commit.json"], file_bytes=64).returncode == 4
    assert {each.name for each in tmp_path.iterdir()} <= {"key", "commit.json.hashed"}  # a commit goes on from there

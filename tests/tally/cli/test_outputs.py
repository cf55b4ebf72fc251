"""Where a result cannot be written, a command says so before it reads or computes anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Tally = Callable[..., Any]
COMMANDS = {
    "merge-profiles": ("merge-profiles", "IN"),
    "commit": ("commit", "IN"),
    "record-inference": ("record-inference", "IN", "--inputs", "IN", "--weights", "IN"),
    "graph slice": ("graph", "slice", "IN", "--nodes", "1"),
    "graph draw": ("graph", "draw", "IN"),
    "graph bind": ("graph", "bind", "IN"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_that_cannot_be_written_is_refused_before_the_input_is_read(
    tally: Tally, tmp_path: Path, name: str
) -> None:
    words = [tmp_path / "input" if word == "IN" else word for word in COMMANDS[name]]
    (tmp_path / "input").write_text("no input of any command")
    (tmp_path / "file").write_text("somebody's")
    told = tally(*words, "--out", tmp_path / "file/out.svg")
    assert told.code == 4
    assert told.complaint == f"tally: {tmp_path / 'file'}: a file; name a folder to write"
    if name != "commit":  # which commits to any file
        other = tally(*words, "--out", tmp_path / "new/out.svg")
        assert "name a folder to write" not in other.complaint
        assert other.code == 4
    assert (tmp_path / "file").read_text() == "somebody's"


@pytest.mark.parametrize("name", ["run[red]", "run[/x]", "run[1]"])
def test_brackets_in_a_path_are_printed(tally: Tally, plain: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(plain, tmp_path / name)
    told = tally("fsck", tmp_path / name)
    assert told.code == 0
    assert name in "".join(told.err.split())  # a long path is wrapped

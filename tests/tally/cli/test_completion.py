"""A shell completes commands, groups and options by the script that `tally completion` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.tally.cli.entry import COMPLETE
from tests.support.prefork.commands import commands

Tally = Callable[..., Any]
SHELLS = {
    "bash": "source {file}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tally_completion tally; "
    'printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": "source {file}; complete --do-complete '{words}' | string split -f1 \\t",
}
TYPED = {
    "tally verify-res": "verify-response",
    "tally graph sh": "show",
    "tally graph show --pr": "--proof",
    "tally audit run --ful": "--full",
    "tally coordinator ini": "init",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(tally: Tally, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    told = tally("completion", shell)
    assert (told.code, told.err) == (0, "")
    file = tmp_path / "script"
    file.write_text(told.out)
    for words, expected in TYPED.items():
        script = SHELLS[shell].format(file=file, words=words)
        around = {**os.environ, "PATH": f"{commands()}:{os.environ['PATH']}"}
        done = subprocess.run([shell, "-c", script], capture_output=True, text=True, env=around)
        assert done.stdout.split() == [expected], done.stderr


@pytest.mark.parametrize(("shell", "words"), [("zsh", "tally graph sh"), ("fish", "tally graph sh")])
def test_what_may_follow_is_told_with_its_help(
    tally: Tally, monkeypatch: pytest.MonkeyPatch, shell: str, words: str
) -> None:
    assert f"complete_{shell}" in tally("completion", shell).out
    monkeypatch.setenv(COMPLETE, f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    told = tally()
    assert told.code == 0
    assert "show" in told.out
    assert "List the inputs, nodes and outputs of a" in told.out
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "is-args")
    assert tally().code == 0
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "tally graph show no-such-file")
    assert tally().code == (1 if shell == "fish" else 0)


def test_an_unknown_shell_is_one_line(tally: Tally) -> None:
    told = tally("completion", "csh")
    assert (told.code, told.complaint) == (2, "tally: SHELL: must be bash, zsh or fish, not 'csh'; did you mean zsh?")

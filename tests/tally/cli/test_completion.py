"""A shell completes commands, groups and options by the script that `tally completion` prints."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Tally = Callable[..., Any]
SHELLS = {
    "bash": "source {file}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tally; "
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
    file = tmp_path / "tally"
    file.write_text(told.out)
    for words, expected in TYPED.items():
        script = SHELLS[shell].format(file=file, words=words)
        assert subprocess.run([shell, "-c", script], capture_output=True, text=True).stdout.split() == [expected]


def test_every_script_names_every_command(tally: Tally) -> None:
    for shell in ("bash", "zsh", "fish"):
        page = tally("completion", shell).out
        assert all(word in page for word in ("verify-response", "calibrate-training", "unseal", "audit-sample"))


def test_an_unknown_shell_is_one_line(tally: Tally) -> None:
    told = tally("completion", "csh")
    assert (told.code, told.complaint) == (2, "tally: SHELL: must be bash, zsh or fish, not 'csh'; did you mean zsh?")

"""What `tally db add` and `tally query` print of text that may come from a prover."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.cli.output import print_table
from tests.support.traces import kernel, trace_at

Tally = Callable[..., Any]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_name_with_control_characters_is_refused_and_not_printed(tally: Tally, tmp_path: Path) -> None:
    folder = trace_at(tmp_path / "new\n\x1b[31mline", [kernel(0, 1)]).path
    told = tally("db", "add", folder, "--db", tmp_path / "tally.db")
    assert (told.code, told.out) == (2, "")
    assert "\x1b" not in told.err
    assert tally("db", "add", folder, "--name", "line", "--db", tmp_path / "tally.db").out == "line\n"


def test_a_place_that_is_refused_keeps_no_other_from_being_read(tally: Tally, tmp_path: Path) -> None:
    folders = [trace_at(tmp_path / name, [kernel(0, 1)]).path for name in ("first", "last")]
    (tmp_path / "empty").mkdir()
    told = tally("db", "add", folders[0], tmp_path / "empty", folders[1], "--db", tmp_path / "tally.db")
    assert (told.code, told.out) == (4, "first\nlast\n")
    assert told.err.startswith(f"tally: {tmp_path / 'empty'}: ")
    assert tally("db", "add", *folders, "--db", tmp_path / "tally.db").code == 0


@pytest.mark.parametrize("text", ["[/x]", "[red]a[/red]", "plain", "\x1b[31m"])
def test_a_terminal_gets_text_as_it_is(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    screen = _Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    print_table(("name",), [(text,)])
    assert screen.getvalue().split("\n")[1].strip() == text.replace("\x1b", "\ufffd")

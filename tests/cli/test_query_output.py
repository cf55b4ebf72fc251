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


@pytest.mark.parametrize("text", ["[/x]", "[red]a[/red]", "plain", "\x1b[31m"])
def test_a_terminal_gets_text_as_it_is(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    screen = _Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    print_table(("name",), [(text,)])
    assert screen.getvalue().split("\n")[1].strip() == text.replace("\x1b", "\ufffd")

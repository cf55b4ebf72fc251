"""What `tally db add` and `tally query` print of text that may come from a prover."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.tally.cli.output import print_table
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


def test_rows_that_are_left_off_are_told_on_stderr_and_in_json(tally: Tally, tmp_path: Path) -> None:
    db = tmp_path / "tally.db"
    tally("db", "add", trace_at(tmp_path / "one", [kernel(0, 1)]).path, "--db", db)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1001) SELECT i FROM n"
    told = tally("query", numbers, "--db", db)
    assert (told.code, len(told.out.splitlines())) == (0, 1 + 1000)
    assert told.err == "these are the first 1,000 rows, and there are more: --limit takes more\n"
    assert json.loads(tally("query", numbers, "--db", db, "--json").out)["more"] is True
    told = tally("query", numbers, "--db", db, "--limit", 1001, "--json")
    assert (json.loads(told.out)["more"], len(json.loads(told.out)["rows"]), told.err) == (False, 1001, "")


def test_a_query_that_runs_away_ends_when_it_is_told_to(tally: Tally, tmp_path: Path) -> None:
    db = tmp_path / "tally.db"
    tally("db", "add", trace_at(tmp_path / "one", [kernel(0, 1)]).path, "--db", db)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    told = tally("query", endless, "--db", db, "--timeout", 0.1)
    assert (told.code, told.out) == (2, "")
    assert told.complaint == (
        "tally: the statement takes longer than 0.1 seconds; ask for less, or give it more with --timeout"
    )


def test_ctrl_c_in_a_query_says_interrupted(tally: Tally, tmp_path: Path) -> None:
    db = tmp_path / "tally.db"
    tally("db", "add", trace_at(tmp_path / "one", [kernel(0, 1)]).path, "--db", db)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    told = tally("query", endless, "--db", db)
    timer.join()
    assert (told.code, told.complaint) == (130, "tally: interrupted")


@pytest.mark.parametrize("url", ["mysql://ada:secret@host/runs", "postgresql://ada:secret@127.0.0.1:1/runs"])
def test_no_message_shows_a_password(tally: Tally, url: str) -> None:
    for command in (
        ["query", "SELECT 1", "--db", url],
        ["db", "list", "--db", url],
        ["token", "new", "a", "--db", url],
    ):
        told = tally(*command)
        assert told.code in (2, 4)
        assert told.complaint.startswith("tally: ")
        assert "secret" not in told.out + told.err


@pytest.mark.parametrize("text", ["[/x]", "[red]a[/red]", "plain", "\x1b[31m"])
def test_a_terminal_gets_text_as_it_is(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    screen = _Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    print_table(("name",), [(text,)])
    assert screen.getvalue().split("\n")[1].strip() == text.replace("\x1b", "\ufffd")

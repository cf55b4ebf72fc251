"""Names that people try lead to the command, which is named once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick import __version__
from tallystick.tally.cli.application import PLACES
from tallystick.tally.cli.entry import NAMES, resolve_alias

Tally = Callable[..., Any]


def test_help_and_version_are_commands_too(tally: Tally) -> None:
    assert tally("help") == tally("--help")
    assert tally("help", "audit") == tally("audit", "--help")
    assert tally("help", "graph", "show") == tally("graph", "show", "--help")
    assert tally("version") == (0, f"tally {__version__}\n", "")
    assert tally("help", "no-such-command").complaint.startswith("tally: no such command")


@pytest.mark.parametrize(("word", "real"), NAMES.items())
def test_another_name_leads_to_the_command_and_is_no_command_itself(tally: Tally, word: str, real: str) -> None:
    told, asked = tally(word, "--help"), tally(real, "--help")
    assert (told.code, told.out) == (0, asked.out)
    assert told.err == f"note: `tally {word}` is `tally {real}`\n"
    assert word not in PLACES


def test_to_verify_is_what_the_argument_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "opening"):
        (tmp_path / folder).mkdir()
    for file in ("receipt.json", "n3.leaf", "opening/opening.json"):
        (tmp_path / file).touch()
    assert resolve_alias(["verify", "run", "--full"]) == ["audit", "run", "--full"]
    assert resolve_alias(["verify", "--full", "run"]) == ["audit", "--full", "run"]
    assert resolve_alias(["check", "opening"]) == ["judge", "opening"]
    assert resolve_alias(["verify", "n3.leaf"]) == ["referee", "n3.leaf"]
    assert resolve_alias(["verify", "receipt.json"]) == ["verify-response", "receipt.json"]
    assert resolve_alias(["verify", "--model", "run", "receipt.json"])[0] == "verify-response"
    assert resolve_alias(["audit", "verify"]) == ["audit", "verify"]


def test_to_verify_nothing_or_what_is_not_there_is_one_line(tally: Tally, tmp_path: Path) -> None:
    told = tally("verify")
    assert (told.code, told.out) == (2, "")
    assert "`tally audit RUN`, or `tally verify-response RECEIPT --model DIR`" in told.complaint
    assert tally("verify", tmp_path / "x")[:2] == (4, "")

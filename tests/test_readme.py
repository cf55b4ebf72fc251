"""What the README shows can be typed: every command and option in it exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tallystick.cli.entry import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def command_lines(text: str) -> Iterator[str]:
    """Every `tally …` in backticks, and every line of a block that begins with it, comments left out."""
    yield from re.findall(r"`(tally [^`]*)`", text)
    yield from (match.split("  #")[0] for match in re.findall(r"^ {4}(?:\$ )?(tally .*)$", text, re.MULTILINE))


LINES = sorted(set(command_lines(README)))


def test_the_readme_shows_the_main_commands() -> None:
    shown = {line.split()[1] for line in LINES}
    assert {"train", "audit", "verify-segment", "demo"} <= shown


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_of_the_readme_names_a_command_and_options_that_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    command = COMMANDS[words[0]]
    if isinstance(command, typer.core.TyperGroup):
        commands = [command.commands[name] for name in words[1].split("|")]
        command, words = commands[0], words[1:]
    known = {name for parameter in command.params for name in parameter.opts}
    assert [word for word in words[1:] if word.startswith("-") and word not in known] == []


def test_every_command_is_in_the_readme() -> None:
    shown = {line.split()[1] for line in LINES}
    assert {*COMMANDS} - shown == set()


@pytest.mark.parametrize("target", re.findall(r"^ {4}make (\w+)", README, re.MULTILINE))
def test_every_make_target_of_the_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "path", re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r"`((?:examples|scripts|docs)/[^`]+)`", README)
)
def test_every_file_the_readme_names_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("number", ["0 accepted", "1 rejected", "2 usage", "3 inconclusive", "4 environment"])
def test_the_readme_and_the_help_agree_on_exit_codes(number: str) -> None:
    assert number in README
    assert number in (app.registered_callback.callback.__doc__ or "")  # type: ignore[union-attr]

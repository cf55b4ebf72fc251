"""What README and the page of commands show can be typed: blocks run as written, and commands and options exist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tallystick.tally.cli.application import SECTIONS, HelpSection, application
from tests.support.pages.reading import FENCED, read_page
from tests.support.pages.running import PAGE_TIMEOUT_S, run_page

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
LIST = (ROOT / "docs" / "commands.md").read_text()
COMMANDS = application().commands
WORDS_MAX = 900


def command_lines(text: str) -> Iterator[str]:
    """Every `tally …` in backticks, and every line of a block that begins with it, comments left out."""
    yield from re.findall(r"`(tally (?!help\b)[^`]*)`", text)
    yield from (match.split("  #")[0] for match in re.findall(r"^(tally .*)$", text, re.MULTILINE))


LINES = sorted({*command_lines(README), *command_lines(LIST)})


def words(page: str) -> int:
    """The words that are read: headings, prose and tables. Fenced blocks are pasted, and comments are not shown."""
    return len(re.sub(r"<!--.*?-->", "", FENCED.sub("", page), flags=re.DOTALL).split())


@pytest.mark.timeout(PAGE_TIMEOUT_S)
def test_the_readme_does_what_it_says() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sqlalchemy")
    run_page(read_page(README))


def test_the_install_of_the_readme_is_tried_with_a_wheel() -> None:
    (extra,) = re.findall(r"`pip install 'tallystick(\[\w+\])'`, then `tally demo`", README)
    installed = (ROOT / "scripts" / "wheel_test.sh").read_text().partition(f'install "{extra}"')[2]
    assert re.search(r"^says 0 .* tally demo$", installed, re.MULTILINE)


def test_the_readme_is_short() -> None:
    assert words("a b\n```sh\nc\n```\n| d | <!-- e -->") == 5
    assert words(README) <= WORDS_MAX


def test_the_readme_shows_the_main_commands() -> None:
    shown = {line.split()[1] for line in command_lines(README)}
    assert {"train", "audit", "attack", "verify-response"} <= shown


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_names_a_command_and_options_that_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    command = COMMANDS[words[0]]
    if isinstance(command, typer.core.TyperGroup):
        commands = [command.commands[name] for name in words[1].split("|")]
        command, words = commands[0], words[1:]
    known = {name for parameter in command.params for name in parameter.opts}
    assert [word for word in words[1:] if word.startswith("-") and word not in known] == []


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_the_page_of_commands_has_the_sections_of_the_help(section: HelpSection) -> None:
    (found,) = re.findall(rf"^## {section.name}\n(.*?)(?=^## )", LIST, re.MULTILINE | re.DOTALL)
    assert {line.split()[1] for line in command_lines(found)} == set(section.commands)


@pytest.mark.parametrize("target", re.findall(r"`make (\w+)`", README))
def test_every_make_target_of_the_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", re.findall(r"`((?:examples|scripts|docs)/[^`]+)`", README))
def test_every_file_the_readme_names_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("number", ["0 accepted", "1 rejected", "2 usage", "3 inconclusive", "4 environment"])
def test_the_pages_and_the_help_agree_on_exit_codes(number: str) -> None:
    assert number in README
    assert number in LIST
    assert number in str(application().help)


def figure(benchmark: str, name: str) -> dict[str, Any]:
    """A figure of the benchmarks, by its name."""
    measured = json.loads((ROOT / "docs" / "data" / "benchmarks.json").read_text())
    return next(each for each in measured[benchmark]["figures"] if each["name"] == f"{benchmark}: {name}")


@pytest.mark.parametrize(
    ("benchmark", "name", "shown"),
    [
        ("train_commit", "projection, anchor every 100, 4,096 tokens a step", "{inside:.2f} % of the CPU time"),
        ("audit_cost", "fixed", "{value:.1f} training steps"),
        ("audit_cost", "per step", "{value:.2f} of a training step"),
        ("transcript_scale", "bytes", "{value:.0f} bytes"),
        ("verify_over_prefill", "d 2048, final layer", "{value:.2f} of one pass"),
        ("verify_over_prefill", "d 2048, generation", "{value:.3f} of generating"),
    ],
)
def test_the_figures_are_those_of_the_benchmarks(benchmark: str, name: str, shown: str) -> None:
    found = figure(benchmark, name)
    inside = 100 * (found.get("inside cpu", [1.0])[0] - 1)
    assert shown.format(value=found["value"][0], inside=inside) in " ".join(README.split())

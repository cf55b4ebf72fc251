"""What every command has in common: help, exit codes, one line of complaint, and a light start."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.root_page import written
from tallystick import __version__
from tallystick.tally.cli.application import GROUPS, PLACES, SECTIONS, HelpSection, application
from tallystick.tally.cli.entry import BEGINNING, HELP_PAGE

REPOSITORY = Path(__file__).parents[3]
Tally = Callable[..., Any]
COMMANDS = sorted(PLACES.keys() - GROUPS.keys())
HEAVY = {"torch", "transformers", "tokenizers", "matplotlib", "sklearn", "numpy", "jinja2"}


def test_all_commands_of_the_first_version_are_there() -> None:
    assert {"train", "audit", "verify-segment", "commit", "verify-data", "digest", "open", "fsck", "demo"} <= {
        *COMMANDS
    }


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help(tally: Tally, command: str, option: str) -> None:
    told = tally(command, option)
    assert (told.code, told.err) == (0, "")
    assert f"Usage: tally {command}" in told.out


def test_the_help_of_tally_names_every_command_and_exit_code(tally: Tally) -> None:
    told = tally("--help")
    assert told.code == 0
    assert all(command in told.out for command in COMMANDS)
    assert "3 inconclusive" in " ".join(told.out.split())


def test_the_help_of_tally_shows_every_command_under_one_role_of_at_most_nine() -> None:
    shown = [name for role in SECTIONS for name in role.commands]
    assert sorted(shown) == sorted(PLACES)
    assert max(len(role.commands) for role in SECTIONS) <= 9


@pytest.mark.parametrize("role", SECTIONS, ids=lambda role: role.name)
def test_every_role_has_a_command_to_begin_with(tally: Tally, role: HelpSection) -> None:
    assert role.first.split()[1] == next(iter(role.commands))
    assert f"{role.name} (first: {role.first}):" in tally("--help").out


def test_the_help_of_tally_stands_in_a_file_as_typer_would_print_it(tally: Tally) -> None:
    assert HELP_PAGE.read_text("utf-8") == written(), "`python scripts/root_page.py` writes it anew"
    assert tally("--help").out == tally("-h").out == tally("help").out == HELP_PAGE.read_text("utf-8")


def test_a_command_that_is_looked_up_is_loaded_alone() -> None:
    code = "from tallystick.tally.cli.application import application; application().commands['audit']"
    shown = "import sys; print(sorted(name for name in sys.modules if name.startswith('tallystick.tally.cli.')))"
    done = subprocess.run([sys.executable, "-c", f"{code}; {shown}"], capture_output=True, text=True, check=True)
    loaded = {name.rpartition(".")[2] for name in eval_list(done.stdout)}
    assert "audit" in loaded
    assert loaded <= {"application", "entry", "audit", "options", "output"}


def test_every_place_of_the_table_is_a_command_with_a_line_of_help() -> None:
    for name, command in application().commands.items():
        assert (command.name, bool(command.help)) == (name, True)
        for inner, below in getattr(command, "commands", {}).items():
            assert (below.name, bool(below.help)) == (inner, True)
    with pytest.raises(TypeError):
        del application().commands["audit"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_what_is_said_at_once_loads_no_command(arguments: list[str]) -> None:
    code = f"import sys; from tallystick.tally.cli.entry import run; run({arguments}); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval_list(done.stdout.splitlines()[-1]))
    assert "typer" not in loaded
    assert not {name for name in loaded if name.startswith("tallystick.tally.cli.")} - {"tallystick.tally.cli.entry"}


def test_commands_that_judge_and_rule_name_each_other(tally: Tally) -> None:
    for command, others in {
        "judge": ("referee", "rule"),
        "rule": ("referee", "judge"),
        "referee": ("rule", "judge"),
    }.items():
        told = " ".join(tally(command, "--help").out.split())
        assert all(f"see `tally {other}`" in told or f"and `tally {other}`" in told for other in others)


def test_the_help_of_tally_cuts_no_sentence(tally: Tally) -> None:
    commands = tally("--help").out.partition("\nTrain ")[2]
    assert "..." not in commands


def test_tally_alone_says_where_to_begin(tally: Tally) -> None:
    told = tally()
    assert (told.code, told.out, told.err) == (2, "", BEGINNING)
    named = {line.split()[1] for line in BEGINNING.splitlines() if line.startswith("  tally ")} - {"help"}
    assert named <= {*PLACES}
    assert len(BEGINNING.splitlines()) <= 16


def test_the_package_is_the_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "tallystick", "help", "audit"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: tally audit")


def test_the_version_is_printed(tally: Tally) -> None:
    assert tally("--version")[:2] == (0, f"tally {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [[], ["help"], ["--help"], ["audit", "--help"], ["--version"], ["completion", "bash"], ["attack", "--list"]],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"import sys; from tallystick.tally.cli.entry import run; run({arguments}); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval_list(done.stdout.splitlines()[-1]))
    assert not loaded & HEAVY


def eval_list(text: str) -> list[str]:
    import ast

    return list(ast.literal_eval(text))


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["--no-such-option"],
        ["audit"],
        ["audit", "run", "--samples", "many"],
        ["audit", "run", "--samples", "0"],
        ["audit", "run", "--window", "-4"],
        ["audit", "run", "--nonce", "12"],
        ["audit", "run", "--nonce", "zz" * 32],
        ["audit", "run", "--claim", "sha256:12"],
        ["audit", "run", "--colour", "red"],
        ["verify-segment", "run"],
        ["verify-segment", "run", "--from", "a", "--to", "b"],
        ["train"],
        ["train", "config.toml"],
        ["train", "--out", "x"],
        ["train", "config.toml", "--out", "x", "--resume", "y"],
        ["open", "run"],
        ["open", "run", "--record", "1", "--step", "1"],
        ["open", "run", "--record", "-1"],
        ["coordinator"],
        ["prove-data", "run"],
        ["digest"],
    ],
)
def test_a_request_that_makes_no_sense_exits_with_2_and_one_line(tally: Tally, arguments: list[str]) -> None:
    told = tally(*arguments)
    assert (told.code, told.out) == (2, "")
    if arguments == ["coordinator"]:  # the whole help, in lines
        assert told.err.startswith("Usage: tally")
        assert "\n" in told.err.strip()
        assert "\ufffd" not in told.err
    else:
        assert told.complaint.startswith("tally: ")


def test_a_usage_error_says_which_argument_is_missing(tally: Tally) -> None:
    assert tally("audit").complaint == "tally: missing argument RUN; see `tally audit --help`"
    assert tally("audit", "run", "--samples", "many").complaint.startswith(
        "tally: --samples: must be a whole number, not 'many'"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["audit"],
        ["audit", "--full"],
        ["verify-segment", "--from", "0", "--to", "4"],
        ["verify-data"],
        ["prove-data", "--index", "0"],
        ["targets"],
        ["open", "--record", "0"],
        ["open", "--step", "1"],
        ["fsck"],
        ["fsck", "--repair"],
        ["digest"],
        ["train", "--resume"],
        ["commit"],
    ],
)
@pytest.mark.parametrize("kind", ["missing", "empty folder", "file"])
def test_what_is_no_run_exits_with_4_and_is_left_alone(
    tally: Tally, tmp_path: Path, command: list[str], kind: str
) -> None:
    target = tmp_path / "target"
    if kind == "empty folder":
        target.mkdir()
    elif kind == "file":
        target.write_bytes(b"no run")
    if command == ["commit"] and kind != "missing":
        pytest.skip("any file or folder can be committed to")
    told = tally(command[0], *([target, *command[1:]] if "--resume" not in command else [*command[1:], target]))
    assert (told.code, told.out) == (4, "")
    assert told.complaint.startswith("tally: ")
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == ([] if kind == "missing" else ["target"])


def test_an_interruption_exits_with_130(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.core.tensor_digests.digest_file", interrupt)
    told = tally("digest", "x.safetensors")
    assert (told.code, told.complaint) == (130, "tally: interrupted")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_missing_library_is_named_with_its_remedy(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    told = tally("train", REPOSITORY / "examples/llama-tiny.toml", "--out", tmp_path / "run")
    assert told.code == 4
    assert re.fullmatch(r"tally: torch is not installed: pip install 'tallystick\[\w+\]'", told.complaint)


UNFORESEEN = [
    ValueError("two\nlines"),
    RecursionError("maximum recursion depth exceeded"),
    SystemExit(1),
    SystemExit(0),
    EOFError(),
    AssertionError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
]


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda each: type(each).__name__)
def test_what_nobody_foresaw_is_one_line_and_no_verdict(
    tally: Tally, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("tallystick.core.tensor_digests.digest_file", fail)
    told = tally("digest", "x.safetensors")
    assert (told.code, told.out) == (4, "")
    assert told.complaint.startswith(f"tally: this is a mistake of tallystick's: {type(error).__name__}:")
    assert "TALLY_TRACEBACK=1" in told.complaint


def test_a_traceback_is_shown_to_whoever_asks(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("why")

    monkeypatch.setattr("tallystick.core.tensor_digests.digest_file", fail)
    monkeypatch.setenv("TALLY_TRACEBACK", "1")
    told = tally("digest", "x.safetensors")
    assert told.code == 4
    assert "Traceback (most recent call last)" in told.err


def test_a_machine_without_memory_is_told(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tallystick.core.tensor_digests.digest_file", fail)
    told = tally("digest", "x.safetensors")
    assert (told.code, told.complaint) == (4, "tally: out of memory")

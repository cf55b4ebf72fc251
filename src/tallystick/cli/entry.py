"""The entry point: one line for whatever goes wrong, and an exit code that says whose fault it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tallystick import __version__
from tallystick.cli.aliases import meant
from tallystick.cli.signals import Terminated, listen
from tallystick.cli.streams import OUTPUT, close_stdout, open_streams
from tallystick.errors import TallyError
from tallystick.passwords import without_passwords

INPUT_EXIT = 4
INTERRUPTED_EXIT = 130
TERMINATED_EXIT = 143
"""128 and the number of the signal, as in shells; 141 is the same for a reader of the output that is gone."""
READER_LEFT_EXIT = 141
MISTAKE_MAX = 500
TRACEBACK = "TALLY_TRACEBACK"
"""Set to anything, an error is shown with its traceback."""
HELP_PAGE: Final = Path(__file__).with_name("root_help.txt")
"""What `tally --help` prints, written by `python scripts/root_page.py`: so nothing is loaded for it."""
BEGINNING: Final = """\
tally makes ML compute verifiable: record training or the answers of a model,
replay any part, judge the difference.

Begin with these:
  tally demo                         honest runs accepted, frauds caught
  tally example llama-tiny           write a recipe here, and say how to train it
  tally audit run                    replay part of that run and give a verdict

Go on with:
  tally help                         all commands, by role
  tally help COMMAND                 one command and its options
  tally verify-response              check answers of a model by their receipts
  tally coordinator                  run a network that settles disputes
  import tallystick                  the same from Python
"""


def main() -> None:
    """Run `tally` and exit."""
    open_streams()
    listen()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler of PyTorch, once loaded, talks on stderr
    code = run(sys.argv[1:])
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run `tally` with `arguments` and return its exit code."""
    try:
        arguments = meant(arguments)
        at_once = AT_ONCE.get("".join(arguments)) if len(arguments) < 2 else None
        code = _invoke(arguments) if at_once is None else at_once()
        sys.stdout.flush()  # what is printed counts as written only now
    # Whatever nobody foresaw ends here, and only here, in one line and a code that is no verdict: left to itself it
    # would exit with 1, and 1 means rejected.
    except BaseException as error:  # noqa: BLE001
        if os.environ.get(TRACEBACK):
            import traceback

            traceback.print_exception(error)
        code = _told(error, arguments)
        _write_the_rest()
    return code


def _write_the_rest() -> None:
    """Write what was printed before an error; where it cannot be written, nobody is told that as well."""
    try:
        sys.stdout.flush()
    except OSError:
        close_stdout()


def _begin() -> int:
    """Where to begin, for whoever types `tally` alone; nothing was done, so the exit code is that of a usage error."""
    print(BEGINNING, end="", file=sys.stderr)
    return 2


def _show_help() -> int:
    print(HELP_PAGE.read_text("utf-8"), end="")
    return 0


def _show_version() -> int:
    print(f"tally {__version__}")
    return 0


AT_ONCE: Final[Mapping[str, Callable[[], int]]] = {
    "": _begin,
    "--help": _show_help,
    "-h": _show_help,
    "--version": _show_version,
}
"""What is answered without a command."""


def _invoke(arguments: list[str]) -> int:
    """What a command returns; errors travel, where typer's own `main` would turn some of them into exit code 1."""
    import typer

    from tallystick.cli.application import application

    command = typer.main.get_command(application(arguments[0]))
    try:
        with command.make_context("tally", list(arguments)) as context:
            result = command.invoke(context)
    except typer.Exit as leaving:
        return leaving.exit_code
    return result if isinstance(result, int) else 0


def _told(error: BaseException, arguments: list[str]) -> int:
    """Say in one line what went wrong; returns the exit code."""
    if isinstance(error, TallyError):
        return _say(str(error), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return _say(str(error) or "interrupted", INTERRUPTED_EXIT)
    if isinstance(error, Terminated):
        return _say(str(error) or "terminated", TERMINATED_EXIT)
    if _is_reader_gone(error):
        close_stdout()
        return READER_LEFT_EXIT
    if isinstance(error, ModuleNotFoundError):
        from tallystick.extras import not_installed

        return _say(str(not_installed(error.name or str(error))), INPUT_EXIT)
    if isinstance(error, OSError):
        if error.filename == OUTPUT:
            close_stdout()
        return _say(f"{error.strerror or error}: {error.filename or 'while reading or writing'}", INPUT_EXIT)
    if isinstance(error, MemoryError):
        return _say("out of memory", INPUT_EXIT)
    if (misused := _misused(error, arguments)) is not None:
        return _tell_usage(misused)
    what = " ".join(f"{type(error).__name__}: {error}".split())[:MISTAKE_MAX]
    return _say(
        f"this is a mistake of tallystick's: {what}; please report it (set {TRACEBACK}=1 to see where)", INPUT_EXIT
    )


def _misused(error: BaseException, arguments: list[str]) -> str | None:
    """What is wrong with the command line; `None` for another error."""
    import typer

    if not isinstance(error, typer.TyperException):
        return None
    from tallystick.cli.application import application
    from tallystick.cli.usage import usage_line

    return usage_line(error, application(arguments[0]), arguments)


def _tell_usage(message: str) -> int:
    if "\n" in message:  # the whole help, where nothing was asked
        print(message, file=sys.stderr)
        return 2
    return _say(message, 2)


def _is_reader_gone(error: BaseException) -> bool:
    """Whether stdout is a pipe that nobody reads any more; `rich` makes a `SystemExit(1)` of it."""
    cause = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(cause, BrokenPipeError) and cause.filename == OUTPUT


def _say(message: str, code: int) -> int:
    line = "".join(character if character.isprintable() else "\ufffd" for character in without_passwords(message))
    print(f"tally: {line}", file=sys.stderr)
    return code

"""The entry point: one line for whatever goes wrong, and an exit code that says whose fault it was."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from tallystick import __version__
from tallystick.cli import (
    attack,
    audit,
    calibrate,
    calibrate_answers,
    calibrate_training,
    cluster,
    completion,
    coordinator,
    data,
    database,
    demo,
    diff,
    dispute,
    economics,
    ethereum,
    example,
    generate,
    graph,
    inference,
    inspect,
    judge,
    models,
    open as opening,
    parties,
    push,
    referee,
    serve,
    serve_model,
    serve_vllm,
    thin,
    traces,
    train,
    ui,
    verify_graph,
    verify_response,
)
from tallystick.cli.aliases import meant
from tallystick.cli.root_help import SCREEN, RootHelp
from tallystick.cli.signals import Terminated, listen
from tallystick.cli.streams import OUTPUT, close_stdout, open_streams
from tallystick.errors import TallyError
from tallystick.passwords import without_passwords

app = typer.Typer(
    name="tally",
    cls=RootHelp,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for group in (
    *(train, audit, data, inspect, opening, judge, diff, inference, example, thin),
    *(graph, attack, calibrate, calibrate_answers, calibrate_training, demo, generate, models, serve_model),
    *(serve_vllm, verify_graph, verify_response, coordinator, parties, dispute, referee, economics, ethereum),
    *(cluster, database, serve, push, traces, ui, completion),
):
    group.register(app)


INPUT_EXIT = 4
INTERRUPTED_EXIT = 130
TERMINATED_EXIT = 143
"""128 and the number of the signal, as in shells; 141 is the same for a reader of the output that is gone."""
READER_LEFT_EXIT = 141
MISTAKE_MAX = 500
TRACEBACK = "TALLY_TRACEBACK"
"""Set to anything, an error is shown with its traceback."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tally {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    """Make ML compute verifiable: record a training run, replay any part of it, judge the difference.

    Exit codes: 0 accepted or done, 1 rejected, 2 usage, 3 inconclusive, 4 environment, input or I/O, 130 interrupted,
    143 terminated.
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
        code = _invoke(arguments) if arguments else _begin()
        sys.stdout.flush()  # what is printed counts as written only now
    # Whatever nobody foresaw ends here, and only here, in one line and a code that is no verdict: left to itself it
    # would exit with 1, and 1 means rejected.
    except BaseException as error:  # noqa: BLE001
        if os.environ.get(TRACEBACK):
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


def _invoke(arguments: list[str]) -> int:
    """What a command returns; errors travel, where typer's own `main` would turn some of them into exit code 1."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("tally", list(arguments)) as context:
            result = command.invoke(context)
    except typer.Exit as leaving:
        return leaving.exit_code
    return result if isinstance(result, int) else 0


def _begin() -> int:
    """Where to begin, for whoever types `tally` alone; nothing was done, so the exit code is that of a usage error."""
    print(SCREEN, end="", file=sys.stderr)
    return 2


def _told(error: BaseException, arguments: list[str]) -> int:
    """Say in one line what went wrong; returns the exit code."""
    if isinstance(error, TallyError):
        return _say(str(error), error.exit_code)
    if isinstance(error, typer.TyperException):
        from tallystick.cli.usage import usage_line

        return _tell_usage(usage_line(error, app, arguments))
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
    what = " ".join(f"{type(error).__name__}: {error}".split())[:MISTAKE_MAX]
    return _say(
        f"this is a mistake of tallystick's: {what}; please report it (set {TRACEBACK}=1 to see where)", INPUT_EXIT
    )


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

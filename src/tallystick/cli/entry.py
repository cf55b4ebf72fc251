"""The entry point: one line for whatever goes wrong, and an exit code that says whose fault it was."""

from __future__ import annotations

import sys

import typer

from tallystick import __version__
from tallystick.cli import (
    attack,
    audit,
    calibrate,
    calibrate_training,
    coordinator,
    data,
    demo,
    dispute,
    economics,
    ethereum,
    generate,
    graph,
    inference,
    inspect,
    judge,
    parties,
    referee,
    serve_model,
    train,
    verify_graph,
    verify_response,
)
from tallystick.cli import open as opening
from tallystick.errors import TallyError

app = typer.Typer(
    name="tally",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for group in (
    *(train, audit, data, inspect, opening, judge, inference),
    *(graph, attack, calibrate, calibrate_training, demo, generate, serve_model, verify_graph, verify_response),
    *(coordinator, parties, dispute, referee, economics, ethereum),
):
    group.register(app)


SIGINT_EXIT = 130
"""What typer returns for Ctrl-C."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tally {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    """Make ML compute verifiable: record a training run, replay any part of it, judge the difference.

    Exit codes: 0 accepted or done, 1 rejected, 2 usage, 3 inconclusive, 4 environment, input or I/O.
    """


def main() -> None:
    """Run `tally` and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run `tally` with `arguments` and return its exit code."""
    try:
        result = app(arguments, standalone_mode=False, prog_name="tally")
    except TallyError as error:
        return _say(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        return _say(f"{error.name} is not installed: pip install 'tallystick[torch]'", 4)
    except typer.TyperException as error:
        return _say(f"{error.format_message().rstrip('.')}; see `{_help_for(arguments)}`", 2)
    except OSError as error:
        return _say(f"{error.strerror or error}: {error.filename or 'while reading or writing'}", 4)
    if result == SIGINT_EXIT:
        return _say("interrupted", 4)
    return result if isinstance(result, int) else 0


def _help_for(arguments: list[str]) -> str:
    return " ".join(["tally", *_known(app, arguments), "--help"])


def _known(group: typer.Typer, arguments: list[str]) -> list[str]:
    """The leading arguments that name a command, or a group and a command in it."""
    commands = {each.name or getattr(each.callback, "__name__", "") for each in group.registered_commands}
    groups = {each.name: each.typer_instance for each in group.registered_groups}
    name = arguments[0] if arguments else None
    inner = groups.get(name)
    if inner is not None:
        return [*arguments[:1], *_known(inner, arguments[1:])]
    return arguments[:1] if name in commands else []


def _say(message: str, code: int) -> int:
    line = "".join(character if character.isprintable() else "\ufffd" for character in message)
    print(f"tally: {line}", file=sys.stderr)
    return code

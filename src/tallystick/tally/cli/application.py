"""The application: which file has which commands, the help that lists them by role, and usage errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from tallystick import __version__
from tallystick.core.errors import suggestion

# What is wrong with a command line, in one form: the word as it is typed, and the one that was meant.

NO_COMMAND = "No such command"
UNEXPECTED = "Got unexpected extra argument(s) "


def usage_line(error: typer.TyperException, app: typer.Typer, arguments: list[str]) -> str:
    """What is wrong, and which help says more; the whole help, in lines, where only a group was named."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return error.format_message()
    named = _named_command(app, arguments)
    wrong = _wrong(error, arguments[len(named) :]).rstrip(".")
    return f"{wrong}; see `{' '.join(['tally', *named, '--help'])}`"


def _wrong(error: Any, rest: list[str]) -> str:
    """The words of typer's errors, by their classes; those have no public names."""
    kind, message = type(error).__name__, str(error.format_message())
    if kind == "NoSuchOption":
        return _no_such_option(error)
    if kind == "MissingParameter":
        return f"missing {error.param.param_type_name} {_typed(error.param)}"
    if kind == "BadParameter" and error.param is not None:
        return f"{_typed(error.param)}: {_refused(error)}"
    if kind == "BadOptionUsage":
        return f"{error.option_name}: " + ("takes no value" if "does not take" in message else "needs a value")
    if message.startswith(NO_COMMAND) and rest:
        return f"no such command {rest[0]}{suggestion(rest[0], error.ctx.command.commands)}"
    if message.startswith(UNEXPECTED):
        return f"unexpected argument {message.removeprefix(UNEXPECTED).strip('()')}"
    return message[:1].lower() + message[1:]


def _no_such_option(error: Any) -> str:
    names = [name for each in error.ctx.command.params for name in (*each.opts, *each.secondary_opts)]
    options = sorted({"--help", *(name for name in names if name.startswith("--"))})
    return f"no such option {error.option_name}{suggestion(error.option_name, options)}"


def _refused(error: Any) -> str:
    """What a value must be; typer reads values by pydantic."""
    from pydantic import ValidationError

    from tallystick.core.documents import complaint

    if isinstance(error.__cause__, ValidationError):
        return complaint(error.__cause__.errors(include_url=False)[0])
    return str(error.message)


def _typed(parameter: Any) -> str:
    """An option by its longest name, an argument as the usage line shows it."""
    is_argument = parameter.param_type_name == "argument"
    return str(parameter.name).upper() if is_argument else str(max(parameter.opts, key=len))


def _named_command(group: typer.Typer, arguments: list[str]) -> list[str]:
    """The leading arguments that name a command, or a group and a command in it."""
    commands = {
        each.name or getattr(each.callback, "__name__", "").replace("_", "-") for each in group.registered_commands
    }
    groups = {each.name: each.typer_instance for each in group.registered_groups}
    name = arguments[0] if arguments else None
    inner = groups.get(name)
    if inner is not None:
        return [*arguments[:1], *_named_command(inner, arguments[1:])]
    return arguments[:1] if name in commands else []


# The help of `tally`: the commands by the role of whoever needs them.


@dataclass(frozen=True)
class HelpSection:
    """What somebody wants to do, as a section of the help: the command to begin with, and all commands for it."""

    name: str
    first: str
    commands: tuple[str, ...]


SECTIONS: Final = (
    HelpSection(
        "Train", "tally train CONFIG.toml --out RUN", ("train", "thin", "rows", "record-inference", "export-model")
    ),
    HelpSection(
        "Audit",
        "tally audit RUN",
        ("audit", "verify-segment", "fsck", "diff", "open", "judge", "verify-data", "prove-data", "targets"),
    ),
    HelpSection(
        "Verify answers",
        "tally verify-response RECEIPT --model DIR",
        (
            "verify-response",
            "serve-model",
            "serve-vllm",
            "import-model",
            "model-root",
            "new-key",
            "generate",
            "open-states",
            "verify-graph",
        ),
    ),
    HelpSection(
        "Run a network",
        "tally coordinator init --demo",
        ("coordinator", "prover", "watchtower", "challenger", "committee", "rule", "dispute", "referee", "contract"),
    ),
    HelpSection("Look and ask", "tally db add RUN", ("db", "query", "ui", "serve", "token", "push")),
    HelpSection(
        "Graphs and limits",
        "tally graph show GRAPH",
        ("graph", "calibrate", "merge-profiles", "calibrate-training", "calibrate-answers"),
    ),
    HelpSection(
        "Timelines",
        "tally cluster describe --out cluster.json",
        ("cluster", "profile-step", "import-trace", "audit-trace", "export-trace"),
    ),
    HelpSection("Tools", "tally demo", ("demo", "example", "attack", "commit", "digest", "economics", "completion")),
)


class RootHelp(TyperGroup):
    """The commands of `tally`, shown by role."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each role: every command with the first sentence of its help."""
        width = max(map(len, self.commands))
        limit = formatter.width - width - 6
        for section in SECTIONS:
            with formatter.section(f"{section.name} (first: {section.first})"):
                rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in section.commands]
                formatter.write_dl(rows)


# The application: which file has which commands, and only those files are loaded that a command line needs.

FILES: Final[Mapping[str, str]] = {
    "train": "train record-inference example thin",
    "audit": "audit verify-segment attack",
    "data": "commit verify-data prove-data targets rows",
    "inspect": "digest fsck open diff",
    "judge": "judge referee",
    "graph": "graph",
    "calibrate": "calibrate merge-profiles calibrate-answers calibrate-training",
    "demo": "demo",
    "models": "generate open-states new-key import-model export-model model-root verify-graph",
    "serve_model": "serve-model serve-vllm",
    "verify_response": "verify-response",
    "coordinator": "coordinator",
    "parties": "prover watchtower challenger committee rule",
    "dispute": "dispute",
    "economics": "economics",
    "ethereum": "contract",
    "traces": "cluster profile-step import-trace audit-trace export-trace",
    "database": "query db",
    "serve": "serve token push ui",
    "completion": "completion",
}
"""The commands and groups that each file registers."""
OF_ALL: Final = "completion"
"""A command that is about all others."""


def application(word: str = "") -> typer.Typer:
    """The application with the command or group that `word` names; with all of them where it names none."""
    app = typer.Typer(
        name="tally",
        cls=RootHelp,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    named = [file for file, commands in FILES.items() if word != OF_ALL and word in commands.split()]
    for file in named or FILES:
        import_module(f"tallystick.tally.cli.{file}").register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tally {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    """Make ML compute verifiable: record a training run, replay any part of it, judge the difference.

    Exit codes: 0 accepted or done, 1 rejected, 2 usage, 3 inconclusive, 4 environment, input or I/O, 130 interrupted,
    143 terminated.
    """

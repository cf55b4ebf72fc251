"""The application: one table of commands by role, each loaded when it is named; the help of `tally`; usage errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import typer
from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]
from typer.core import TyperGroup

from tallystick import __version__
from tallystick.core import documents
from tallystick.core.errors import UsageError, refusal, suggestion
from tallystick.core.lazy import load_name
from tallystick.tally.cli.entry import COMPLETE
from tallystick.tally.cli.options import spread

# The table of commands: NAME=MODULE:FUNCTION, the module in this folder. The line of help of a command is the first
# sentence of its docstring. A command imports what is heavy as a module, which then waits (`core/waiting.py`).


@dataclass(frozen=True)
class HelpSection:
    """What somebody wants to do, as a section of the help: the command to begin with, and all commands for it."""

    name: str
    first: str
    places: str

    @property
    def commands(self) -> dict[str, str]:
        """Where each command is, by its name; nowhere if it is a group."""
        return _by_name(self.places)


def _by_name(places: str) -> dict[str, str]:
    return {name: place for name, _, place in (word.partition("=") for word in places.split())}


SECTIONS: Final = (
    HelpSection(
        "Train",
        "tally train CONFIG.toml --out RUN",
        """
        train=train:train thin=train:thin rows=data:rows record-inference=train:record_inference
        export-model=models:export_model
        """,
    ),
    HelpSection(
        "Audit",
        "tally audit RUN",
        """
        audit=audit:audit verify-segment=audit:verify_segment fsck=inspect:fsck diff=inspect:diff open=inspect:open_run
        judge=judge:judge verify-data=data:verify_data prove-data=data:prove_data targets=data:targets
        """,
    ),
    HelpSection(
        "Verify answers",
        "tally verify-response RECEIPT --model DIR",
        """
        verify-response=verify_response:verify_response serve-model=serve_model:serve_model
        serve-vllm=serve_model:serve_vllm import-model=models:import_model model-root=models:model_root
        new-key=models:new_key generate=models:generate open-states=models:open_states
        verify-graph=models:verify_graph
        """,
    ),
    HelpSection(
        "Run a network",
        "tally coordinator init --demo",
        """
        coordinator prover=parties:prover watchtower=parties:watchtower challenger=parties:challenger
        committee=parties:committee rule=parties:rule dispute referee=judge:referee contract
        """,
    ),
    HelpSection(
        "Look and ask",
        "tally db add RUN",
        "db query=database:query ui=serve:ui serve=serve:serve token push=serve:push",
    ),
    HelpSection(
        "Graphs and limits",
        "tally graph show GRAPH",
        """
        graph calibrate=calibrate:calibrate merge-profiles=calibrate:merge_profiles
        calibrate-training=calibrate:calibrate_training calibrate-answers=calibrate:calibrate_answers
        """,
    ),
    HelpSection(
        "Timelines",
        "tally cluster describe --out cluster.json",
        """
        cluster profile-step=traces:profile_step import-trace=traces:import_trace audit-trace=traces:audit_trace
        export-trace=traces:export_trace
        """,
    ),
    HelpSection(
        "Tools",
        "tally demo",
        """
        demo=demo:demo example=train:example attack=audit:attack commit=data:commit digest=inspect:digest
        economics=economics:economics completion=application:completion
        """,
    ),
)
GROUPS: Final = {
    "coordinator": (
        "Run a coordinator of disputes in a database.",
        "init=coordinator:init serve=coordinator:serve grant=coordinator:grant show=coordinator:show",
    ),
    "dispute": (
        "Open, follow, play and settle disputes.",
        """
        open=dispute:open_ status=dispute:status show=dispute:show play=dispute:play settle=dispute:settle
        withdraw=dispute:withdraw retire=dispute:retire pause=dispute:pause resume=dispute:resume
        seal=dispute:seal unseal=dispute:unseal delegate=dispute:delegate
        """,
    ),
    "contract": (
        "Use an Ethereum contract as the coordinator.",
        """
        new-key=ethereum:new_key deploy=ethereum:deploy show=ethereum:show attest=ethereum:attest relay=ethereum:relay
        """,
    ),
    "db": (
        "Keep runs and audits in a database.",
        """
        add=database:add upgrade=database:upgrade forget=database:forget list=database:list_places
        show=database:show_run check=database:check rebuild=database:rebuild
        export=database:export store=database:store restore=database:restore collect=database:collect
        link=database:link to-tensorboard=database:to_tensorboard to-mlflow=database:to_mlflow
        """,
    ),
    "token": ("Say who may use the service.", "new=serve:new list=serve:list_ revoke=serve:revoke"),
    "graph": (
        "Look at a graph: show, slice, compare, draw.",
        "show=graph:show stats=graph:stats slice=graph:slice_ diff=graph:diff draw=graph:draw bind=graph:bind",
    ),
    "cluster": (
        "State the devices of a cluster.",
        "describe=traces:describe import=traces:import_ show=traces:show",
    ),
}
"""The line of help of each group, and where its commands are."""
PLACES: Final = {name: place for section in SECTIONS for name, place in section.commands.items()}


class Commands(Mapping[str, Any]):
    """Commands by name. One that is looked up is loaded, and no other one."""

    def __init__(self, places: dict[str, str]) -> None:
        self.places = places

    def __getitem__(self, name: str) -> Any:
        module, _, function = self.places[name].partition(":")
        if not module:
            line, places = GROUPS[name]
            commands: Any = Commands(_by_name(places))
            return TyperGroup(name=name, help=line, commands=commands, no_args_is_help=True, rich_markup_mode=None)
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name)(spread(load_name(f"tallystick.tally.cli.{module}", function)))
        return typer.main.get_command(app)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


# The help of `tally`: the commands by the role of whoever needs them.


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


def application() -> TyperGroup:
    """`tally` with all its commands, none of which is loaded yet."""
    app = typer.Typer(
        name="tally",
        cls=RootHelp,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    group = typer.main.get_group(app)
    group.commands = Commands(PLACES)  # type: ignore[assignment]
    return group


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


# Completion in a shell, as typer does it.

SHELLS: Final = ("bash", "zsh", "fish")


def complete(instruction: str) -> int:
    """Print the script of a shell (`source_bash`), or what may follow the words that it gives (`complete_bash`)."""
    completion_init()
    try:
        return shell_complete(application(), {}, "tally", COMPLETE, instruction)
    except SystemExit as end:  # so typer says yes or no to fish
        return int(end.code or 0)


def completion(shell: str = typer.Argument(help="bash, zsh or fish.")) -> None:
    """Print the script that completes commands in a shell.

    In bash: `eval "$(tally completion bash)"`, in ~/.bashrc for every terminal. In zsh the same with zsh, in ~/.zshrc
    after compinit. In fish: `tally completion fish | source`.
    """
    if shell not in SHELLS:
        raise UsageError(f"SHELL: {refusal(shell, SHELLS)}")
    complete(f"source_{shell}")


# What is wrong with a command line, in one form: the word as it is typed, and the one that was meant.

NO_COMMAND = "No such command"
UNEXPECTED = "Got unexpected extra argument(s) "


def usage_line(error: Any, arguments: list[str]) -> str:
    """What is wrong, and which help says more; the whole help, in lines, where only a group was named."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error.format_message())
    first, second = (*arguments, "", "")[:2]
    is_in_group = first in GROUPS and second in _by_name(GROUPS[first][1])
    count = (first in PLACES) + is_in_group  # the leading arguments that name a command
    wrong = _wrong(error, arguments[count:]).rstrip(".")
    return f"{wrong}; see `{' '.join(['tally', *arguments[:count], '--help'])}`"


def _wrong(error: Any, rest: list[str]) -> str:
    """The words of typer's errors, by their classes; those have no public names."""
    kind, message = type(error).__name__, str(error.format_message())
    if kind == "NoSuchOption":
        names = [name for each in error.ctx.command.params for name in (*each.opts, *each.secondary_opts)]
        options = sorted({"--help", *(name for name in names if name.startswith("--"))})
        return f"no such option {error.option_name}{suggestion(error.option_name, options)}"
    if kind == "MissingParameter":
        return f"missing {error.param.param_type_name} {_typed(error.param)}"
    if kind == "BadParameter" and error.param is not None:
        from pydantic import ValidationError  # by which typer reads values

        cause = error.__cause__
        is_read = isinstance(cause, ValidationError)
        refused = documents.complaint(cause.errors(include_url=False)[0]) if is_read else error.message
        return f"{_typed(error.param)}: {refused}"
    if kind == "BadOptionUsage":
        return f"{error.option_name}: " + ("takes no value" if "does not take" in message else "needs a value")
    if message.startswith(NO_COMMAND) and rest:
        return f"no such command {rest[0]}{suggestion(rest[0], error.ctx.command.commands)}"
    if message.startswith(UNEXPECTED):
        return f"unexpected argument {message.removeprefix(UNEXPECTED).strip('()')}"
    return message[:1].lower() + message[1:]


def _typed(parameter: Any) -> str:
    """An option by its longest name, an argument as the usage line shows it."""
    is_argument = parameter.param_type_name == "argument"
    return str(parameter.name).upper() if is_argument else str(max(parameter.opts, key=len))

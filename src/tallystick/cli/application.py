"""The application: which file has which commands, and only those files are loaded that a command line needs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import typer

from tallystick import __version__
from tallystick.cli.root_help import RootHelp

FILES: Final[Mapping[str, str]] = {
    "train": "train",
    "audit": "audit verify-segment",
    "data": "commit verify-data prove-data targets rows",
    "inspect": "digest fsck",
    "open": "open",
    "judge": "judge",
    "diff": "diff",
    "inference": "record-inference",
    "example": "example",
    "thin": "thin",
    "graph": "graph",
    "attack": "attack",
    "calibrate": "calibrate merge-profiles",
    "calibrate_answers": "calibrate-answers",
    "calibrate_training": "calibrate-training",
    "demo": "demo",
    "generate": "generate open-states new-key",
    "models": "import-model export-model model-root",
    "serve_model": "serve-model",
    "serve_vllm": "serve-vllm",
    "verify_graph": "verify-graph",
    "verify_response": "verify-response",
    "coordinator": "coordinator",
    "parties": "prover challenger committee rule",
    "dispute": "dispute",
    "referee": "referee",
    "economics": "economics",
    "ethereum": "contract",
    "cluster": "cluster",
    "database": "query db",
    "serve": "serve token",
    "push": "push",
    "traces": "profile-step import-trace audit-trace export-trace",
    "ui": "ui",
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
        import_module(f"tallystick.cli.{file}").register(app)
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

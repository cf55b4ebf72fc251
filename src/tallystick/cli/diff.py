"""`tally diff`: where two runs that should be equal begin to differ."""

from __future__ import annotations

from pathlib import Path

import typer

from tallystick.cli.options import device_option


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(diff)


def diff(
    first: Path = typer.Argument(help="A run directory, or one that `tally open --operators` wrote."),
    second: Path = typer.Argument(help="Another one of the same kind."),
    operator: bool = typer.Option(False, "--operator", help="Name the first operator that differs: replay the step."),
    replay: bool = typer.Option(True, "--replay/--no-replay", help="Find the step between two anchors by replaying."),
    device: str = device_option("Replay on cpu or cuda."),
    out: Path | None = typer.Option(None, help="Keep the openings of --operator here; `tally judge` judges them."),
    json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> int:
    """Name where two runs begin to differ.

    Settings, then the first step, the first tensor and, with --operator, the first operator. Exit code 0: equal,
    1: different, 3: nothing differs as far as both go, 4: a file cannot be read.
    """
    from tallystick.api.comparing import diff as compare
    from tallystick.cli.output import existing, print_json
    from tallystick.differences.text import difference_lines

    for each in (first, second):
        existing(each, "run or opening")
    found = compare(first, second, operator=operator, replay=replay, out=out, device=device)
    if json:
        print_json(found.to_json())
    else:
        print("\n".join(difference_lines(found)))
    return found.exit_code

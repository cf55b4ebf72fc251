"""`tally thin`: remove anchors of a finished run."""

from __future__ import annotations

from pathlib import Path

import typer

from tallystick.cli.options import ALWAYS_JSON


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(thin)


def thin(
    run: Path = typer.Argument(help="A finished run directory."),
    keep: str = typer.Option(..., metavar="N|every:K", help="The anchors that stay: the last N, or every K-th."),
    json: bool = ALWAYS_JSON,
) -> None:
    """Remove anchors of a finished run, to save disk.

    The first and the last anchor always stay. The claim stays as it is: an audit replays from the anchors that are
    left, and leaves open what lies too far behind them.
    """
    from tallystick.cli.output import print_json, talk
    from tallystick.store.folders import RUN, require_folder
    from tallystick.store.lock import RunLock
    from tallystick.store.retention import Retention, recorded_anchors, thin_anchors
    from tallystick.store.run import RunDirectory

    chosen, directory = Retention.parse(keep), RunDirectory(require_folder(run, RUN))
    directory.claim()
    with RunLock(run):
        marks = recorded_anchors(directory)
        kept = chosen.kept(marks)
        removed = thin_anchors(run, marks, kept)
    talk().print(f"{run}: {len(removed)} anchors removed, {len(kept)} of {len(marks)} stay", soft_wrap=True)
    print_json({"kept": [*sorted(kept)], "removed": [*removed]})

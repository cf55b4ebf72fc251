"""`tally calibrate`: measure how far honest stacks lie from each operator's exact result, and set thresholds by it."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.cli.options import JSON

if TYPE_CHECKING:
    from tallystick.calibration.operators.calibrate import OperatorStudy


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(calibrate)
    app.command()(merge_profiles)


def calibrate(
    graph: Path = typer.Argument(help="The graph, as `tally graph` writes it."),
    inputs: Path = typer.Option(help="A directory of safetensors files, each one set of inputs."),
    out: Path = typer.Option(help="Where the profile is written, as JSON."),
    budget: Path | None = typer.Option(None, help="Also write what the errors of whole runs add up to: a budget."),
    figures: Path | None = typer.Option(None, help="Also write every figure behind the profile, as JSON."),
    keep: Path | None = typer.Option(None, help="Keep the values of all runs in this directory."),
    as_json: bool = JSON,
) -> None:
    """Measure thresholds for the operators of a graph.

    Every operator runs on each numerical stack of this machine; the thresholds follow from the errors.

    A file `weights.safetensors` beside the inputs belongs to every set.
    """
    from tallystick.calibration.operators.calibrate import calibrate_budget, calibrate_graph
    from tallystick.cli.output import existing, talk
    from tallystick.documents.files import write_atomically
    from tallystick.documents.targets import require_writable

    for target in (out, budget, figures):
        if target is not None:
            require_writable(target, makes_folders=True)
    existing(graph, "graph")
    existing(inputs, "directory")
    console = talk()
    folder = tempfile.TemporaryDirectory(prefix="tally-calibrate-") if keep is None else nullcontext(str(keep))
    with folder as place:
        study = calibrate_graph(graph, inputs, Path(place), console.print)
        if budget is not None:
            limits = calibrate_budget(graph, inputs, Path(place), console.print)
            write_atomically(budget, limits.to_bytes() + b"\n")
    _write(study, out, figures, as_json)


def merge_profiles(
    profiles: list[Path] = typer.Argument(help="Profiles of several machines."),
    out: Path = typer.Option(help="Where the profile that holds for all of them is written."),
    json: bool = JSON,
) -> None:
    """Join the thresholds of several machines.

    The larger threshold counts, but never more than the bound of the operator.
    """
    from functools import reduce

    from tallystick.api.settings import read_profile
    from tallystick.cli.output import show
    from tallystick.documents.files import write_atomically
    from tallystick.documents.targets import require_writable

    require_writable(out, makes_folders=True)
    joined = reduce(lambda one, other: one.merged(other), map(read_profile, profiles))
    write_atomically(out, joined.to_bytes() + b"\n")
    name = joined.digest_as("calibration")
    show({"out": str(out), "profile": str(name)}, name, json)


def _write(study: OperatorStudy, out: Path, figures: Path | None, as_json: bool) -> None:
    from tallystick.calibration.operators.figures import figures_of
    from tallystick.cli.output import print_json
    from tallystick.commitments.encoding import encode
    from tallystick.documents.files import write_atomically

    write_atomically(out, study.profile.to_bytes() + b"\n")
    found = figures_of(study)
    if figures is not None:
        write_atomically(figures, encode(found) + b"\n")
    if as_json:
        print_json(found)
    else:
        print(study.profile.digest_as("calibration"))

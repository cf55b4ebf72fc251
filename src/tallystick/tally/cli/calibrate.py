"""`tally calibrate`, `calibrate-training`, `calibrate-answers`: limits by this machine's stacks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from tallystick.tally.cli.options import JSON, dtype_of, dtype_option

if TYPE_CHECKING:
    from tallystick.core.canonical_json import Json

# `tally calibrate`: measure how far honest stacks lie from each operator's exact result, and set thresholds by it.


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(calibrate)
    app.command()(merge_profiles)
    app.command()(calibrate_training)
    app.command()(calibrate_answers)


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
    from tallystick.core.canonical_json import encode
    from tallystick.core.files import require_writable, write_atomically
    from tallystick.tally.calibration.operators import calibrate_budget, calibrate_graph, figures_of
    from tallystick.tally.cli.output import existing, print_json, talk

    for target in (out, budget, figures):
        if target is not None:
            require_writable(target, makes_folders=True)
    existing(graph, "graph")
    existing(inputs, "directory")
    console = talk()
    with _folder(keep) as place:
        study = calibrate_graph(graph, inputs, place, console.print)
        if budget is not None:
            limits = calibrate_budget(graph, inputs, place, console.print)
            write_atomically(budget, limits.to_bytes() + b"\n")
    write_atomically(out, study.profile.to_bytes() + b"\n")
    found = figures_of(study)
    if figures is not None:
        write_atomically(figures, encode(found) + b"\n")
    print_json(found) if as_json else print(study.profile.digest_as("calibration"))


def merge_profiles(
    profiles: list[Path] = typer.Argument(help="Profiles of several machines."),
    out: Path = typer.Option(help="Where the profile that holds for all of them is written."),
    json: bool = JSON,
) -> None:
    """Join the thresholds of several machines.

    The larger threshold counts, but never more than the bound of the operator.
    """
    from functools import reduce

    from tallystick.core.files import require_writable, write_atomically
    from tallystick.tally.cli.output import show
    from tallystick.tally.operators import read_profile

    require_writable(out, makes_folders=True)
    joined = reduce(lambda one, other: one.merged(other), map(read_profile, profiles))
    write_atomically(out, joined.to_bytes() + b"\n")
    name = joined.digest_as("calibration")
    show({"out": str(out), "profile": str(name)}, name, json)


# `tally calibrate-training`: measure how far honest stacks drift apart on this machine, and set limits by it.


def calibrate_training(
    out: Path = typer.Argument(help="Where the limits are written, as JSON."),
    run: Path | None = typer.Option(
        None, "--run", help="A finished run: limits for its training, from its own segments."
    ),
    segments: int = typer.Option(4, min=2, help="With --run: how many of its segments are replayed."),
    quick: bool = typer.Option(False, "--quick", help="Fewer seeds and segments, and no power table."),
    also: Path | None = typer.Option(None, help="Limits measured on another machine, to hold for both."),
    figures: Path | None = typer.Option(None, help="Also write every figure behind the limits, as JSON."),
    page: Path | None = typer.Option(None, help="Also write the page that shows limits and power, as Markdown."),
    keep: Path | None = typer.Option(None, help="Keep the runs of the study in this directory."),
    json: bool = JSON,
) -> None:
    """Measure the limits of audits on another stack.

    Small runs are replayed on every numerical stack of this machine; the limits of tolerant audits follow from
    their distances. For a large model, name a run of it: `tally audit RUN --calibration OUT` judges by its limits.
    """
    from tallystick.core.errors import UsageError
    from tallystick.core.files import read_document, require_writable, write_atomically

    for target in (out, figures, page):
        if target is not None:
            require_writable(target, makes_folders=True)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"{keep}: not empty; choose another directory")
    if run is not None and (quick or also or page):
        raise UsageError("--run takes none of --quick, --also and --page")
    from tallystick.audits.limits import Calibration
    from tallystick.core.canonical_json import encode
    from tallystick.tally.calibration.own_run import calibrate_on
    from tallystick.tally.calibration.page import render_page
    from tallystick.tally.calibration.study import FULL, QUICK, calibrate, figures_of
    from tallystick.tally.cli.output import existing, print_json

    tell = _teller()
    with _folder(keep) as folder:
        if run is not None:
            own = calibrate_on(existing(run, "run directory"), folder, segments, tell)
            limits, measured = own.calibration, cast("Json", own.figures)
            shown: Json = {"calibration": limits.digest_as("calibration"), "measured": measured}
        else:
            elsewhere = None
            if also is not None:
                elsewhere = Calibration.from_bytes(read_document(also).removesuffix(b"\n"), also.name)
            study = calibrate(folder, QUICK if quick else FULL, elsewhere, tell)
            tell("done")
            limits, found = study.calibration, figures_of(study)
            measured = shown = found
            if page is not None:
                write_atomically(page, render_page(limits, found).encode())
    write_atomically(out, limits.to_bytes() + b"\n")
    if figures is not None:
        write_atomically(figures, encode(measured) + b"\n")
    print_json(shown) if json else print(limits.digest_as("calibration"))


def _teller() -> Callable[[str], None]:
    """Prints each line with the seconds since the beginning."""
    import time

    from tallystick.tally.cli.output import talk

    started, console = time.perf_counter(), talk()
    return lambda what: console.print(f"{time.perf_counter() - started:6.0f} s  {what}")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="tally-calibrate-") as folder:
        yield Path(folder)


# `tally calibrate-answers`: measure how far honest answers of one model lie from a verifier's own pass.


def calibrate_answers(
    model: Path = typer.Argument(help="The model: a directory in the form of transformers."),
    out: Path = typer.Option(..., help="Where the table is written, as JSON."),
    dtype: str | None = dtype_option("The promised precision"),
    answers: int = typer.Option(100, min=5, help="Answers in all, over the stacks of this machine."),
    tokens: int = typer.Option(256, min=1, help="The most tokens of an answer."),
    json: bool = JSON,
) -> None:
    """Measure the limits of receipts for one model.

    They are limits of fingerprints and states, the tie band, margins and drift.

    The model answers questions in batches of several sizes, with either attention and several threads, and each
    answer is judged by one pass. `tally verify-response --limits TABLE` then judges models of this precision that
    are no deeper and no wider. The table is written when all is measured; a run that is interrupted keeps nothing.
    """
    from tallystick.formats.store.folders import MODEL, require_folder

    require_folder(model, MODEL)
    from tallystick.core.files import require_writable, write_atomically
    from tallystick.tally.calibration.answers import Effort, calibrate_answers
    from tallystick.tally.cli.entry import Terminated
    from tallystick.tally.cli.output import print_json

    promised = dtype_of(model, dtype)
    require_writable(out, makes_folders=True)
    try:
        table = calibrate_answers(model, promised, Effort(answers, tokens), _teller())
    except (KeyboardInterrupt, Terminated) as error:
        raise type(error)(f"interrupted: {out} is as before, nothing was kept; fewer --answers end sooner") from None
    write_atomically(out, table.to_bytes() + b"\n")
    found = table.tokens[0]
    print_json(table.to_json()) if json else print(
        f"{out}: {found.dtype} up to {found.layers} layers of width {found.width}, {answers} answers; tie band "
        f"{found.band:g} logits, drift {found.rms:g}, {found.mismatches:.1%} of tokens differ at most"
    )

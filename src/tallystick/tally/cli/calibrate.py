"""`tally calibrate`, `calibrate-training`, `calibrate-answers`: limits by this machine's stacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, Final

import typer

from tallystick.core.canonical_json import encode
from tallystick.core.errors import UsageError
from tallystick.core.files import require_writable, write_atomically
from tallystick.formats.store.folders import MODEL, require_folder
from tallystick.tally import operators
from tallystick.tally.calibration import (
    answers as answer_calibration,
    operators as operator_study,
    own_run,
    page as calibration_page,
    study as training_study,
)
from tallystick.tally.cli.entry import Terminated
from tallystick.tally.cli.options import AsJson, PromisedDtype, dtype_of, kept_folder, read_calibration
from tallystick.tally.cli.output import existing, show, talk

PREFIX: Final = "tally-calibrate-"

# `tally calibrate`: measure how far honest stacks lie from each operator's exact result, and set thresholds by it.


def calibrate(
    graph: Path = typer.Argument(help="The graph, as `tally graph` writes it."),
    inputs: Path = typer.Option(help="A directory of safetensors files, each one set of inputs."),
    out: Path = typer.Option(help="Where the profile is written, as JSON."),
    budget: Path | None = typer.Option(None, help="Also write what the errors of whole runs add up to: a budget."),
    figures: Path | None = typer.Option(None, help="Also write every figure behind the profile, as JSON."),
    keep: Path | None = typer.Option(None, help="Keep the values of all runs in this directory."),
    as_json: AsJson = False,
) -> None:
    """Measure thresholds for the operators of a graph.

    Every operator runs on each numerical stack of this machine; the thresholds follow from the errors.

    A file `weights.safetensors` beside the inputs belongs to every set.
    """
    _require_writable(out, budget, figures)
    existing(graph, "graph")
    existing(inputs, "directory")
    console = talk()
    with kept_folder(keep, PREFIX) as place:
        study = operator_study.calibrate_graph(graph, inputs, place, console.print)
        if budget is not None:
            limits = operator_study.calibrate_budget(graph, inputs, place, console.print)
            write_atomically(budget, limits.to_bytes() + b"\n")
    write_atomically(out, study.profile.to_bytes() + b"\n")
    measured = operator_study.figures_of(study)
    if figures is not None:
        write_atomically(figures, encode(measured) + b"\n")
    show(measured, study.profile.digest_as("calibration"), as_json)


def _require_writable(*targets: Path | None) -> None:
    for target in targets:
        if target is not None:
            require_writable(target, makes_folders=True)


def merge_profiles(
    profiles: list[Path] = typer.Argument(help="Profiles of several machines."),
    out: Path = typer.Option(help="Where the profile that holds for all of them is written."),
    json: AsJson = False,
) -> None:
    """Join the thresholds of several machines.

    The larger threshold counts, but never more than the bound of the operator.
    """
    require_writable(out, makes_folders=True)
    joined = reduce(lambda one, other: one.merged(other), map(operators.read_profile, profiles))
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
    json: AsJson = False,
) -> None:
    """Measure the limits of audits on another stack.

    Small runs are replayed on every numerical stack of this machine; the limits of tolerant audits follow from
    their distances. For a large model, name a run of it: `tally audit RUN --calibration OUT` judges by its limits.
    """
    _require_writable(out, figures, page)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"{keep}: not empty; choose another directory")
    if run is not None and (quick or also or page):
        raise UsageError("--run takes none of --quick, --also and --page")
    tell = _teller()
    measured: Any
    with kept_folder(keep, PREFIX) as folder:
        if run is not None:
            calibration, measured = own_run.calibrate_on(existing(run, "run directory"), folder, segments, tell)
        else:
            elsewhere = None if also is None else read_calibration(also)
            effort = training_study.QUICK if quick else training_study.FULL
            calibration, measured = training_study.calibrate(folder, effort, elsewhere, tell)
            tell("done")
    write_atomically(out, calibration.to_bytes() + b"\n")
    if figures is not None:
        write_atomically(figures, encode(measured) + b"\n")
    if page is not None:
        write_atomically(page, calibration_page.render_page(calibration, measured).encode())
    name = calibration.digest_as("calibration")
    show(measured if run is None else {"calibration": name, "measured": measured}, name, json)


def _teller() -> Callable[[str], None]:
    """What prints a line with the seconds since now."""
    started, console = time.perf_counter(), talk()
    return lambda what: console.print(f"{time.perf_counter() - started:6.0f} s  {what}")


# `tally calibrate-answers`: measure how far honest answers of one model lie from a verifier's own pass.


def calibrate_answers(
    model: Path = typer.Argument(help="The model: a directory in the form of transformers."),
    out: Path = typer.Option(..., help="Where the table is written, as JSON."),
    dtype: PromisedDtype = None,
    answers: int = typer.Option(100, min=5, help="Answers in all, over the stacks of this machine."),
    tokens: int = typer.Option(256, min=1, help="The most tokens of an answer."),
    json: AsJson = False,
) -> None:
    """Measure the limits of receipts for one model.

    They are limits of fingerprints and states, the tie band, margins and drift.

    The model answers questions in batches of several sizes, with either attention and several threads, and each
    answer is judged by one pass. `tally verify-response --limits TABLE` then judges models of this precision that
    are no deeper and no wider. The table is written when all is measured; a run that is interrupted keeps nothing.
    """
    require_folder(model, MODEL)
    promised = dtype_of(model, dtype)
    require_writable(out, makes_folders=True)
    try:
        table = answer_calibration.calibrate_answers(model, promised, answers, tokens, _teller())
    except (KeyboardInterrupt, Terminated) as error:
        raise type(error)(f"interrupted: {out} is as before, nothing was kept; fewer --answers end sooner") from None
    write_atomically(out, table.to_bytes() + b"\n")
    limits = table.tokens[0]
    summary = (
        f"{out}: {limits.dtype} up to {limits.layers} layers of width {limits.width}, {answers} answers; tie band "
        f"{limits.band:g} logits, drift {limits.rms:g}, {limits.mismatches:.1%} of tokens differ at most"
    )
    show(table.to_json(), summary, json)

"""`tally calibrate-training`: measure how far honest stacks drift apart on this machine, and set limits by it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.cli.options import JSON

if TYPE_CHECKING:
    from tallystick.calibration.training.calibrate import Study


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(calibrate_training)


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
    from tallystick.documents.targets import require_writable
    from tallystick.errors import UsageError

    for target in (out, figures, page):
        if target is not None:
            require_writable(target, makes_folders=True)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"{keep}: not empty; choose another directory")
    if run is not None and (quick or also or page):
        raise UsageError("--run takes none of --quick, --also and --page")
    with _folder(keep) as folder:
        if run is not None:
            _write_own(run, folder, segments, out, figures, json)
            return
        study = _run(folder, quick, also)
    _write(study, out, figures, page, json)


def _write_own(run: Path, folder: Path, segments: int, out: Path, figures: Path | None, as_json: bool) -> None:
    from tallystick.calibration.training.own_run import calibrate_on
    from tallystick.cli.output import existing, print_json
    from tallystick.commitments.encoding import encode
    from tallystick.documents.files import write_atomically

    found = calibrate_on(existing(run, "run directory"), folder, segments, _teller())
    write_atomically(out, found.calibration.to_bytes() + b"\n")
    if figures is not None:
        write_atomically(figures, encode(found.figures) + b"\n")
    identity = found.calibration.digest_as("calibration")
    print_json({"calibration": identity, "measured": found.figures}) if as_json else print(identity)


def _teller() -> Callable[[str], None]:
    import time

    from tallystick.cli.output import talk

    started, console = time.perf_counter(), talk()
    return lambda what: console.print(f"{time.perf_counter() - started:6.0f} s  {what}")


def _run(folder: Path, quick: bool, also: Path | None) -> Study:
    from tallystick.audits.calibration import Calibration
    from tallystick.calibration.training.calibrate import FULL, QUICK, calibrate
    from tallystick.documents.files import read_document

    tell = _teller()
    elsewhere = None if also is None else Calibration.from_bytes(read_document(also).removesuffix(b"\n"), also.name)
    study = calibrate(folder, QUICK if quick else FULL, elsewhere, tell)
    tell("done")
    return study


def _write(study: Study, out: Path, figures: Path | None, page: Path | None, as_json: bool) -> None:
    from tallystick.calibration.training.figures import figures_of
    from tallystick.calibration.training.page import render_page
    from tallystick.cli.output import print_json
    from tallystick.commitments.encoding import encode
    from tallystick.documents.files import write_atomically

    write_atomically(out, study.calibration.to_bytes() + b"\n")
    found = figures_of(study)
    if figures is not None:
        write_atomically(figures, encode(found) + b"\n")
    if page is not None:
        write_atomically(page, render_page(study.calibration, found).encode())
    print_json(found) if as_json else print(study.calibration.digest_as("calibration"))


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="tally-calibrate-") as folder:
        yield Path(folder)

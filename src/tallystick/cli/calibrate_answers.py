"""`tally calibrate-answers`: measure how far honest answers of one model lie from a verifier's own pass."""

from __future__ import annotations

from pathlib import Path

import typer

from tallystick.cli.options import JSON, dtype_of, dtype_option


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(calibrate_answers)


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
    from tallystick.store.folders import MODEL, require_folder

    require_folder(model, MODEL)
    import time

    from tallystick.calibration.answers.calibrate import Effort, calibrate_answers
    from tallystick.cli.output import print_json, talk
    from tallystick.cli.signals import Terminated
    from tallystick.documents.files import write_atomically
    from tallystick.documents.targets import require_writable

    promised = dtype_of(model, dtype)
    require_writable(out, makes_folders=True)
    started, console = time.perf_counter(), talk()

    def tell(what: str) -> None:
        console.print(f"{time.perf_counter() - started:6.0f} s  {what}")

    try:
        table = calibrate_answers(model, promised, Effort(answers, tokens), tell)
    except (KeyboardInterrupt, Terminated) as error:
        raise type(error)(f"interrupted: {out} is as before, nothing was kept; fewer --answers end sooner") from None
    write_atomically(out, table.to_bytes() + b"\n")
    found = table.tokens[0]
    print_json(table.to_json()) if json else print(
        f"{out}: {found.dtype} up to {found.layers} layers of width {found.width}, {answers} answers; tie band "
        f"{found.band:g} logits, drift {found.rms:g}, {found.mismatches:.1%} of tokens differ at most"
    )

"""`tally open`: one record with its proof, or the operators of one step or call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.store.inference import InferenceDirectory
    from tallystick.store.run import RunDirectory
    from tallystick.transcripts.opening import Opening


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="open")(open_run)


def open_run(
    run: Path = typer.Argument(help="A run directory."),
    index: int | None = typer.Option(None, "--record", min=0, help="The record's place in the transcript."),
    step: int | None = typer.Option(None, min=1, help="The step, or the call of a model, that is opened."),
    operators: bool = typer.Option(False, "--operators", help="Open its operators: replay it and keep every value."),
    out: Path | None = typer.Option(None, help="Where the operators go."),
    node: int | None = typer.Option(None, min=0, help="Open this operator alone, with its inclusion proofs."),
    tensors: bool = typer.Option(True, "--tensors/--no-tensors", help="Keep the values, not only their digests."),
    device: str = typer.Option("cpu", help="Replay on cpu or cuda."),
) -> None:
    """Open one record of a transcript with its proof, or every operator of a step under a root of its own."""
    if not operators and (node is not None or out is not None):
        raise UsageError("`tally open RUN --step S --operators --out DIR [--node N]`")
    if operators:
        return _open_operators(run, step, out, node, tensors, device)
    if (index is None) == (step is None):
        raise UsageError("`tally open RUN --record I`, or `tally open RUN --step S`")
    return _open_record(run, index, step or 0)


def _open_record(run: Path, index: int | None, step: int) -> None:
    from tallystick.cli.output import print_json
    from tallystick.commitments.encoding import parse
    from tallystick.store.log import open_line
    from tallystick.store.run import RunDirectory

    found = _recorded(run)
    if not isinstance(found, RunDirectory):
        raise UsageError(f"{run}: holds calls of a model; `tally open RUN --step C --operators --out DIR`")
    log = found.claim().transcript
    if index is not None and index >= log.size:
        raise UsageError(f"--record {index}: there are {log.size} records, counted from 0")
    place = index if index is not None else found.place_of_step(step, log.size)
    opened = open_line(found.transcript_path, place, log.size)
    opened.check(log)
    print_json(
        {
            "index": place,
            "proof": [value.hex() for value in opened.proof],
            "record": parse(opened.line, "record"),
            "root": str(log.root),
            "size": log.size,
        }
    )


def _open_operators(
    run: Path, step: int | None, out: Path | None, node: int | None, with_tensors: bool, device: str
) -> None:
    from tallystick.cli.output import print_json, talk
    from tallystick.store.run import RunDirectory

    if step is None or out is None:
        raise UsageError("`tally open RUN --step S --operators --out DIR`")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    found = _recorded(run)
    if isinstance(found, RunDirectory):
        opening = open_step(found, step, out, node, with_tensors, device)
    else:
        opening = open_call(found, step, out, node, with_tensors, device)
    what = f"operator {node}" if node is not None else f"{opening.operators.size} operators"
    talk().print(f"{out}: {what} of record {opening.index}; judge with `tally judge {out}`", soft_wrap=True)
    print_json({"opening": str(opening.identity), "operators": opening.operators.to_json()})


def _recorded(run: Path) -> RunDirectory | InferenceDirectory:
    """What was recorded in a folder; raises `UsageError` for operators, below which there is nothing to open."""
    from tallystick.store.statement import OpeningDirectory, read_statement

    found = read_statement(run)
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"{run}: holds opened operators already; `tally judge {run}` judges them")
    return found


def open_step(
    run: RunDirectory, step: int, out: Path, node: int | None = None, with_tensors: bool = True, device: str = "cpu"
) -> Opening:
    """Open the operators of a step of a run that has a step graph; raises what `open_operators` raises."""
    from tallystick.disputes.evidence.gathering import gather_whole
    from tallystick.disputes.evidence.opening_sources import graph_replayer, source_of_step
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.recorders.step_opening import open_operators

    subject = source_of_step(gather_whole(run), step, lambda evidence: graph_replayer(evidence, device))
    return open_operators(subject, out, TorchEngine(device), node, with_tensors)


def open_call(
    run: InferenceDirectory,
    number: int,
    out: Path,
    node: int | None = None,
    with_tensors: bool = True,
    device: str = "cpu",
) -> Opening:
    """Open the operators of a recorded call of a model; raises what `open_operators` raises."""
    from tallystick.disputes.evidence.gathering import gather_whole
    from tallystick.disputes.evidence.opening_sources import source_of_call
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.recorders.step_opening import open_operators

    return open_operators(source_of_call(gather_whole(run), number), out, TorchEngine(device), node, with_tensors)

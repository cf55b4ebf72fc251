"""`tally open`: one record with its proof, the operators of one step or call, or a segment to be audited alone."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from tallystick.cli.options import ALWAYS_JSON, device_option, read_marks
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.store.inference import InferenceDirectory
    from tallystick.store.run import RunDirectory


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="open")(open_run)


def open_run(
    run: Path = typer.Argument(help="A run directory."),
    index: int | None = typer.Option(None, "--record", min=0, help="The record's place in the transcript."),
    step: int | None = typer.Option(None, min=1, help="The step, or the call of a model, that is opened."),
    operators: bool = typer.Option(False, "--operators", help="Open its operators: replay it and keep every value."),
    segment: str | None = typer.Option(
        None, metavar="A..B", help="Open the segment from anchor A to anchor B, so that it can be audited alone."
    ),
    out: Path | None = typer.Option(None, help="Where the operators or the segment go."),
    node: int | None = typer.Option(None, min=0, help="Open this operator alone, with its inclusion proofs."),
    anchors: str | None = typer.Option(None, metavar="URL", help="Where anchors are that the run directory lacks."),
    tensors: bool = typer.Option(True, "--tensors/--no-tensors", help="Keep the values, not only their digests."),
    device: str = device_option("Replay on cpu or cuda."),
    json: bool = ALWAYS_JSON,
) -> None:
    """Open a record, a step by its operators, or a segment.

    A record is printed with its proof. The operators of a step are written to a directory, under a root of their
    own. A segment directory holds two anchors and everything that `tally audit` needs to replay from one to the other.
    """
    if segment is not None:
        if out is None or operators or index is not None or step is not None or node is not None:
            raise UsageError("`tally open RUN --segment A..B --out DIR`")
        return _open_segment(run, segment, out, anchors)
    if not operators and (node is not None or out is not None):
        raise UsageError("`tally open RUN --step S --operators --out DIR [--node N]`")
    if operators:
        return _open_operators(run, step, out, node, tensors, device)
    if (index is None) == (step is None):
        raise UsageError("`tally open RUN --record I`, or `tally open RUN --step S`")
    return _open_record(run, index, step or 0)


def _open_segment(run: Path, segment: str, out: Path, anchors: str | None) -> None:
    from tallystick.api.segment import open_segment
    from tallystick.cli.output import print_json, talk

    start, end = read_marks(segment)
    opened = open_segment(run, start, end, out, anchors=anchors)
    talk().print(f"{out}: steps {start + 1} to {end}; `tally audit {quote(str(out))}` replays them", soft_wrap=True)
    print_json({"claim": str(opened.run.claim().identity), "start": start, "end": end})


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


def _recorded(run: Path) -> RunDirectory | InferenceDirectory:
    """What was recorded in a folder; raises `UsageError` for operators, below which there is nothing to open."""
    from tallystick.store.statement import OpeningDirectory, read_statement

    found = read_statement(run)
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"{run}: holds opened operators already; `tally judge {quote(str(run))}` judges them")
    return found


def _open_operators(
    run: Path, step: int | None, out: Path | None, node: int | None, with_tensors: bool, device: str
) -> None:
    if step is None or out is None:
        raise UsageError("`tally open RUN --step S --operators --out DIR`")
    from tallystick.documents.targets import require_writable_folder
    from tallystick.store.folders import OPENING, RUN, require_folder

    require_folder(run, RUN, OPENING)
    require_writable_folder(out)
    from tallystick.api.opening import open_operators
    from tallystick.cli.memory import keep_freed_memory
    from tallystick.cli.output import print_json, talk

    keep_freed_memory()
    opening = open_operators(run, step, out, node=node, tensors=with_tensors, device=device)
    what = f"operator {node}" if node is not None else f"{opening.operators.size} operators"
    talk().print(f"{out}: {what} of record {opening.index}; judge with `tally judge {quote(str(out))}`", soft_wrap=True)
    print_json({"opening": str(opening.identity), "operators": opening.operators.to_json()})

"""`tally digest`, `fsck`, `open`, `diff`: look at files and runs, and hand over what is asked for."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from tallystick.core.errors import UsageError
from tallystick.tally.cli.options import ALWAYS_JSON, JSON, device_option, read_marks

if TYPE_CHECKING:
    from tallystick.core.canonical_json import Json
    from tallystick.formats.store.directories import InferenceDirectory
    from tallystick.formats.store.run import RunDirectory


# `tally digest`, `tally fsck`: look at files and runs without replaying anything.


def digest(
    file: Path = typer.Argument(help="A safetensors file."),
    threads: int = typer.Option(0, min=0, help="Hashing threads; 0 takes one per core."),
    canonical: bool = typer.Option(False, "--canonical", help="Refuse any file but the canonical one."),
    json: bool = typer.Option(False, "--json", help="Print the digest of every tensor too, as one JSON object."),
) -> None:
    """Print the state digest of a safetensors file.

    The file may be larger than memory.
    """
    from tallystick.core.safetensors import StateFile
    from tallystick.core.tensor_digests import digest_file
    from tallystick.tally.cli.output import print_json

    if canonical:
        with StateFile(file, canonical=True):
            pass
    digests = digest_file(file, threads or None)
    if json:
        tensors = {name: str(tensor.digest) for name, tensor in digests.entries}
        print_json({"state": str(digests.digest), "tensors": dict(tensors)})
        return
    print(digests.digest)


def fsck(
    run: Path = typer.Argument(help="A run directory."),
    repair: bool = typer.Option(False, "--repair", help="Write tiles and offsets anew from the records."),
    json: bool = JSON,
) -> None:
    """Recheck every digest of a run; replay nothing.

    Roots, proofs and bindings are checked too. With --repair, files that follow from the records are written again.
    """
    from tallystick.audits.opening import gather_evidence
    from tallystick.audits.policy import Policy
    from tallystick.core.errors import ProofError
    from tallystick.formats.store.folders import RUN, require_folder
    from tallystick.formats.store.log import LogWriter, read_lines
    from tallystick.formats.store.run import RunDirectory
    from tallystick.tally.cli.output import print_json, talk
    from tallystick.verdicts.words import describe

    directory = RunDirectory(require_folder(run, RUN))
    if repair:
        directory.claim()
        for path in (directory.transcript_path, directory.trace_path):
            deque(read_lines(path), maxlen=0)  # a torn line of a finished run is not for mending
            LogWriter(path).close()
    evidence = gather_evidence(directory, Policy())
    bad = [finding for finding in evidence.findings.seen if not finding.agrees]
    if json:
        differing: list[Json] = [describe(finding) for finding in bad]
        print_json({"checks": len(evidence.findings.seen), "differing": differing, "steps": evidence.steps})
    if bad:
        raise ProofError(f"{run}: " + "; ".join(describe(finding) for finding in bad))
    talk().print(f"{run}: {len(evidence.findings.seen)} checks agree; {evidence.steps} steps, nothing replayed")


# `tally open`: one record with its proof, the operators of one step or call, or a segment to be audited alone.


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
    from tallystick.tally.auditing import open_segment
    from tallystick.tally.cli.output import print_json, talk

    start, end = read_marks(segment)
    opened = open_segment(run, start, end, out, anchors=anchors)
    talk().print(f"{out}: steps {start + 1} to {end}; `tally audit {quote(str(out))}` replays them", soft_wrap=True)
    print_json({"claim": str(opened.run.claim().identity), "start": start, "end": end})


def _open_record(run: Path, index: int | None, step: int) -> None:
    from tallystick.core.canonical_json import parse
    from tallystick.formats.store.log import open_line
    from tallystick.formats.store.run import RunDirectory
    from tallystick.tally.cli.output import print_json

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
    from tallystick.formats.store.directories import OpeningDirectory, read_statement

    found = read_statement(run)
    if isinstance(found, OpeningDirectory):
        raise UsageError(f"{run}: holds opened operators already; `tally judge {quote(str(run))}` judges them")
    return found


def _open_operators(
    run: Path, step: int | None, out: Path | None, node: int | None, with_tensors: bool, device: str
) -> None:
    if step is None or out is None:
        raise UsageError("`tally open RUN --step S --operators --out DIR`")
    from tallystick.core.files import require_writable_folder
    from tallystick.formats.store.folders import OPENING, RUN, require_folder

    require_folder(run, RUN, OPENING)
    require_writable_folder(out)
    from tallystick.tally.cli.output import keep_freed_memory, print_json, talk
    from tallystick.tally.training import open_operators

    keep_freed_memory()
    opening = open_operators(run, step, out, node=node, tensors=with_tensors, device=device)
    what = f"operator {node}" if node is not None else f"{opening.operators.size} operators"
    talk().print(f"{out}: {what} of record {opening.index}; judge with `tally judge {quote(str(out))}`", soft_wrap=True)
    print_json({"opening": str(opening.identity), "operators": opening.operators.to_json()})


# `tally diff`: where two runs that should be equal begin to differ.


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
    from tallystick.audits.differences.difference import difference_lines
    from tallystick.tally.cli.output import existing, print_json
    from tallystick.tally.comparing import diff as compare

    for each in (first, second):
        existing(each, "run or opening")
    found = compare(first, second, operator=operator, replay=replay, out=out, device=device)
    if json:
        print_json(found.to_json())
    else:
        print("\n".join(difference_lines(found)))
    return found.exit_code

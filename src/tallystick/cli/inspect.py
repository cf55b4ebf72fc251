"""`tally digest`, `tally open`, `tally fsck`: look at files and runs without replaying anything."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.store import RunDirectory


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(digest)
    app.command(name="open")(open_record)
    app.command()(fsck)


def digest(
    file: Path = typer.Argument(help="A safetensors file."),
    threads: int = typer.Option(0, min=0, help="Hashing threads; 0 takes one per core."),
    canonical: bool = typer.Option(False, "--canonical", help="Refuse any file but the canonical one."),
    json: bool = typer.Option(False, "--json", help="Print the digest of every tensor as JSON."),
) -> None:
    """Print the state digest of a safetensors file; a file larger than memory is no problem."""
    from tallystick.cli.output import print_json
    from tallystick.tensors import StateFile, digest_file

    if canonical:
        with StateFile(file, canonical=True):
            pass
    digests = digest_file(file, threads or None)
    if json:
        tensors = {name: str(tensor.digest) for name, tensor in digests.entries}
        print_json({"state": str(digests.digest), "tensors": dict(tensors)})
        return
    print(digests.digest)


def open_record(
    run: Path = typer.Argument(help="A run directory."),
    index: int | None = typer.Option(None, "--record", min=0, help="The record's place in the transcript."),
    step: int | None = typer.Option(None, min=1, help="The step whose record is opened."),
) -> None:
    """Open one record of a transcript with the proof that it stands under the claimed root."""
    from tallystick.cli.output import print_json
    from tallystick.commitments import parse
    from tallystick.store import RunDirectory, open_line

    if (index is None) == (step is None):
        raise UsageError("`tally open RUN --record I`, or `tally open RUN --step S`")
    directory = RunDirectory(run)
    log = directory.claim().transcript
    place = index if index is not None else _place_of(directory, log.size, step or 0)
    opened = open_line(directory.transcript_path, place, log.size)
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


def _place_of(run: RunDirectory, size: int, step: int) -> int:
    """Binary search: the places of records grow with their steps."""
    from tallystick.store import open_line
    from tallystick.transcripts import HeaderRecord, StepRecord, read_record

    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        record = read_record(open_line(run.transcript_path, middle, size).line, f"record {middle}")
        reached = -1 if isinstance(record, HeaderRecord) else record.index
        is_before = reached < step or (reached == step and record.kind == "failed")
        low, high = (middle + 1, high) if is_before else (low, middle)
    if low < size:
        found = read_record(open_line(run.transcript_path, low, size).line, f"record {low}")
        if isinstance(found, StepRecord) and found.index == step:
            return low
    raise UsageError(f"--step {step}: the transcript holds no such step")


def fsck(
    run: Path = typer.Argument(help="A run directory."),
    repair: bool = typer.Option(False, "--repair", help="Write tiles and offsets anew from the records."),
) -> None:
    """Recheck every digest, root, proof and binding of a run; with --repair, write its derived files anew."""
    from tallystick.audits import Policy
    from tallystick.audits.evidence import gather_evidence
    from tallystick.cli.output import talk
    from tallystick.cli.report import describe
    from tallystick.errors import ProofError
    from tallystick.store import LogWriter, RunDirectory, read_lines

    directory = RunDirectory(run)
    if repair:
        directory.claim()
        for path in (directory.transcript_path, directory.trace_path):
            deque(read_lines(path), maxlen=0)  # a torn line of a finished run is not for mending
            LogWriter(path).close()
    evidence = gather_evidence(directory, Policy())
    bad = [finding for finding in evidence.findings.seen if not finding.agrees]
    if bad:
        raise ProofError(f"{run}: " + "; ".join(describe(finding) for finding in bad))
    talk().print(f"{run}: {len(evidence.findings.seen)} checks agree; {evidence.steps} steps, nothing replayed")

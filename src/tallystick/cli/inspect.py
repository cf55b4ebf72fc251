"""`tally digest`, `tally fsck`: look at files and runs without replaying anything."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.cli.options import JSON

if TYPE_CHECKING:
    from tallystick.commitments.encoding import Json


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(digest)
    app.command()(fsck)


def digest(
    file: Path = typer.Argument(help="A safetensors file."),
    threads: int = typer.Option(0, min=0, help="Hashing threads; 0 takes one per core."),
    canonical: bool = typer.Option(False, "--canonical", help="Refuse any file but the canonical one."),
    json: bool = typer.Option(False, "--json", help="Print the digest of every tensor too, as one JSON object."),
) -> None:
    """Print the state digest of a safetensors file.

    The file may be larger than memory.
    """
    from tallystick.cli.output import print_json
    from tallystick.tensors.digest import digest_file
    from tallystick.tensors.safetensors import StateFile

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
    from tallystick.audits.gathering import gather_evidence
    from tallystick.audits.policy import Policy
    from tallystick.cli.output import print_json, talk
    from tallystick.errors import ProofError
    from tallystick.presentation.verdict_text import describe
    from tallystick.store.folders import RUN, require_folder
    from tallystick.store.log import read_lines
    from tallystick.store.log_writer import LogWriter
    from tallystick.store.run import RunDirectory

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

"""What a run that is sent has to be, before any of it is kept: whole where it says so, and never another one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tallystick.audits.gathering import gather_evidence
from tallystick.audits.policy import Policy
from tallystick.commitments.digests import digest_bytes, parse_digest
from tallystick.errors import ProofError
from tallystick.http.problems import Problem
from tallystick.indexing.add import add_place
from tallystick.indexing.log_reading import LogPosition, read_on
from tallystick.presentation.verdict_text import describe
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.inference import InferenceDirectory
from tallystick.store.layout import files_of
from tallystick.store.run import RunDirectory
from tallystick.store.statement import claims_inference
from tallystick.web.service.run_routes import sha256_of

TRANSCRIPT: Final = "transcript.jsonl"
FOLLOWING: Final = ("trace.jsonl", "trace.index", "transcript.index", "tiles/")
"""What follows from the records, or is a statement beside them: a recording that goes on writes it anew."""
PIECE: Final = 1 << 20


def check_against(run: Path, staged: Path) -> None:
    """Raise `Problem` 409 where a file that has come is another one than the run has, and may not be."""
    is_finished = (run / "claim.json").is_file()
    for file in files_of(staged) if staged.is_dir() else ():
        there, new = run / file, staged / file
        if not there.is_file():
            continue
        if not is_finished and file == TRANSCRIPT:
            may_be = _begin_alike(there, new)
        else:
            may_be = (not is_finished and file.startswith(FOLLOWING)) or sha256_of(there) == sha256_of(new)
        if not may_be:
            raise Problem(409, "conflict", f"{file}: the run has another one; send the run under another name")


def check_arrived(folder: Path) -> None:
    """Read everything that the database would read, and compare it with what is stated.

    Records are compared with the claim's root, anchors, batches, graphs and blobs with their digests. Raises
    `MalformedError`, `ProofError` or `UnavailableError` at the first thing that is wrong.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tally-arrival-") as scratch,
        WorkloadDatabase(f"{scratch}/tally.db", writable=True) as database,
    ):
        add_place(database, folder, "run")
    if claims_inference(folder):
        return _check_root(InferenceDirectory(folder))
    run = RunDirectory(folder)
    for blob in (folder / "blobs").glob("*"):
        run.read_blob(parse_digest(f"sha256:{blob.name}", f"blobs/{blob.name}"))
    if run.claim_path.is_file():
        found = gather_evidence(run, Policy()).findings.seen
        if bad := [describe(each) for each in found if not each.agrees]:
            raise ProofError("; ".join(bad))
    return None


def _check_root(run: InferenceDirectory) -> None:
    stated, found = run.claim().transcript, LogPosition()
    for line in read_on(run.transcript_path, found):
        found = line.behind
    is_whole = found.bytes_read == run.transcript_path.stat().st_size
    if not is_whole or found.lines != stated.size or found.frontier.root() != digest_bytes(stated.root):
        raise ProofError("the records do not have the root that the claim names")


def _begin_alike(one: Path, other: Path) -> bool:
    """Whether the shorter of two files is the beginning of the longer one."""
    left = min(one.stat().st_size, other.stat().st_size)
    with one.open("rb") as first, other.open("rb") as second:
        while left > 0:
            size = min(PIECE, left)
            if first.read(size) != second.read(size):
                return False
            left -= size
    return True

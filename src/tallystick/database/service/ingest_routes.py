"""Routes for recorders: a run is sent in pieces, verified, and read into the database."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import IO, Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from tallystick.audits.opening import gather_evidence
from tallystick.audits.policy import Policy
from tallystick.core.digests import digest_bytes, parse_digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import Uploads, declared_size, spool_body
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.sources import LogPosition, of_run, read_on
from tallystick.database.schema import SOURCE
from tallystick.database.service.access import Caller, Sender, ServiceOptions, TokenGrant, claim_upload
from tallystick.database.service.responses import COUNT, FILE, answers, body_of, json_response, object_of
from tallystick.database.service.run_routes import FILES, listed_files, sha256_of
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.store.directories import InferenceDirectory, claims_inference
from tallystick.formats.store.folders import check_file_name, files_of
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.words import describe

# What a run that is sent has to be, before any of it is kept: whole where it says so, and never another one.

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
        findings = gather_evidence(run, Policy()).findings.seen
        if bad := [describe(each) for each in findings if not each.agrees]:
            raise ProofError("; ".join(bad))
    return None


def _check_root(run: InferenceDirectory) -> None:
    stated, position = run.claim().transcript, LogPosition()
    for line in read_on(run.transcript_path, position):
        position = line.behind
    is_whole = position.bytes_read == run.transcript_path.stat().st_size
    if not is_whole or position.lines != stated.size or position.frontier.root() != digest_bytes(stated.root):
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


# Runs that are sent here: pieces of files are gathered, and a run appears once all of it was verified.
#
#     .incoming/NAME/parts/SHA256    a file of which not all has come
#     .incoming/NAME/files/PATH      whole files, which are not part of the run yet
#     NAME/PATH                      the run
#
# A finished run never changes. One that is being recorded grows: its records go on behind those that are there.

INCOMING: Final = ".incoming"
CLAIM: Final = "claim.json"
AT_ONCE: Final = 2
"""Runs that are verified at once: each keeps a thread that others would read with."""
OF_SEGMENTS: Final = ("segment.json", "records.jsonl")


@dataclass
class ArrivingRuns:
    """The folder for runs that are sent; each run is changed by one request at a time."""

    folder: Path
    _busy: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _verifying: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(AT_ONCE))

    def state(self, name: str) -> dict[str, Any]:
        """What of a run is here: whole files with their digests, and the bytes of those that are coming."""
        staged, parts = self._staged(name), self._parts(name)
        folders = [folder for folder in (self.folder / name, staged) if folder.is_dir()]
        files = {file["path"]: file for folder in folders for file in listed_files(folder, hashed=True)}
        coming = {path.name: path.stat().st_size for path in parts.iterdir()} if parts.is_dir() else {}
        return {"files": list(files.values()), "parts": coming}

    def take(self, name: str, file: str, sha256: str, total: int, offset: int, piece: IO[bytes], bytes_max: int) -> int:
        """Keep a piece of a file; returns how many bytes of the file are here.

        Raises `Problem`: 409 where the piece does not go on where the last one ended, or the whole has another digest;
        413 where the run becomes larger than `bytes_max`.
        """
        with self._alone(name):
            if check_file_name(file) in OF_SEGMENTS:
                raise MalformedError(f"{file}: a file of a segment; whole runs are taken")
            target = self._staged(name) / file
            if target.is_file() and target.stat().st_size == total and sha256_of(target) == sha256:
                return total
            part = self._parts(name) / sha256
            part.parent.mkdir(parents=True, exist_ok=True)
            arrived = part.stat().st_size if part.is_file() else 0
            size = piece.seek(0, os.SEEK_END)
            if arrived >= offset + size and arrived:
                if arrived == total:  # the last piece came before, and something ended the service behind it
                    _complete(part, target, sha256)
                return arrived
            if arrived != offset or offset + size > total:
                raise Problem(409, "offset", f"{arrived} bytes of this file are here; go on behind them")
            self._require_room(name, size, bytes_max)
            piece.seek(0)
            with part.open("ab") as out:
                shutil.copyfileobj(piece, out)
                out.flush()
                os.fsync(out.fileno())
            if arrived + size == total:
                _complete(part, target, sha256)
            return arrived + size

    def finish(self, name: str) -> Path:
        """Verify what has come together with what is here, and make it the run; returns its folder.

        Raises `Problem`: 409 where something else is here already, 422 where it is not what it should be. Then all
        that has come is deleted, and the run is as it was. 429 while others are verified.
        """
        with self._alone(name), self._turn():
            staged, run = self._staged(name), self.folder / name
            if not staged.is_dir() and not run.is_dir():
                raise Problem(404, "absent", "no file of this run has come")
            candidate = staged.with_name("candidate")
            shutil.rmtree(candidate, ignore_errors=True)
            try:
                with _refusals(candidate):
                    check_against(run, staged)
                    _link_all(run, candidate)
                    _link_all(staged, candidate)
                    check_arrived(candidate)
            except Problem:
                shutil.rmtree(staged.parent, ignore_errors=True)
                raise
            finally:
                shutil.rmtree(candidate, ignore_errors=True)
            for file in sorted(files_of(staged) if staged.is_dir() else (), key=lambda each: each == CLAIM):
                with _one_name_one_file():
                    (run / file).parent.mkdir(parents=True, exist_ok=True)
                    (staged / file).replace(run / file)
            shutil.rmtree(staged.parent, ignore_errors=True)
            return run

    def _staged(self, name: str) -> Path:
        return self.folder / INCOMING / name / "files"

    def _parts(self, name: str) -> Path:
        return self.folder / INCOMING / name / "parts"

    def _require_room(self, name: str, size: int, bytes_max: int) -> None:
        here = [self.folder / name, self.folder / INCOMING / name]
        bytes_here = sum(path.stat().st_size for folder in here for path in folder.rglob("*") if path.is_file())
        if bytes_here + size > bytes_max:
            raise Problem(413, "size", f"this token sends runs of {bytes_max} bytes at most")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._verifying.acquire(blocking=False):
            raise Problem(429, "busy", "other runs are being verified; come back", headers={"Retry-After": "1"})
        try:
            yield
        finally:
            self._verifying.release()

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with self._lock:
            if name in self._busy:
                raise Problem(429, "busy", "another request changes this run; come back", headers={"Retry-After": "1"})
            self._busy.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(name)


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    try:
        yield
    except (MalformedError, ProofError, UnavailableError, UsageError) as error:
        problem = str(error).partition(" (looked in ")[0].replace(f"{folder}: ", "")
        raise Problem(422, "refused", f"the run is not what it should be: {problem}") from None


@contextmanager
def _one_name_one_file() -> Iterator[None]:
    """Raise `Problem` 409 where a name is to be a file and a folder."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Problem(409, "conflict", "a name of this file is that of a folder, or the other way round") from None


def _complete(part: Path, target: Path, sha256: str) -> None:
    if sha256_of(part) != sha256:
        part.unlink()
        raise Problem(409, "digest", "the bytes of this file are not those of its digest; send it again")
    with _one_name_one_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)


def _link_all(source: Path, target: Path) -> None:
    for file in files_of(source) if source.is_dir() else ():
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).unlink(missing_ok=True)
        os.link(source / file, target / file)


SIZE_MAX: Final = 1 << 42
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
Size = Annotated[int, Query(ge=0, le=SIZE_MAX)]
Sha256 = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
_STATE: Final = object_of({"files": FILES, "parts": {"type": "object", "additionalProperties": {"type": "integer"}}})
_TAKEN: Final = object_of({"received": COUNT})
_ADDED: Final = object_of({"run": {"type": "string"}})
_BODY: Final = body_of(FILE, "application/octet-stream")


def ingest_routes(database: WorkloadDatabase, options: ServiceOptions) -> APIRouter:
    """The routes with which runs are sent to the folder that the operator named."""
    routes, uploads = APIRouter(tags=["ingest"]), Uploads()
    arriving = ArrivingRuns(options.runs or Path())
    where = "/v1/runs/{name}/upload"

    async def owner(name: str, caller: Caller) -> TokenGrant:
        if caller.grant is None or options.runs is None:
            raise Problem(403, "closed", "this service takes no runs: it was started without --runs")
        if RUN_NAME.fullmatch(name) is None:
            raise Problem(400, "malformed", "a run is named by 1 to 100 letters, digits, dots and dashes")
        await asyncio.to_thread(_require_own, database, arriving, name, caller.grant.name)
        return caller.grant

    @routes.get(where, responses=answers(_STATE, "What of the run is here."))
    async def state(name: str, caller: Sender) -> Response:
        """The files of a run that are here with their digests, and how much of others."""
        await owner(name, caller)
        return json_response(await asyncio.to_thread(arriving.state, name))

    @routes.put(f"{where}/{{path:path}}", responses=answers(_TAKEN, "How much is here."), openapi_extra=_BODY)
    async def take(
        request: Request, name: str, path: str, sha256: Sha256, size: Size, offset: Size, caller: Sender
    ) -> Response:
        """A piece of a file of `size` bytes, from `offset` on."""
        grant = await owner(name, caller)
        length = declared_size(request, options.piece_bytes_max)
        if length is None:
            raise Problem(411, "malformed", "Content-Length: needed for a piece of a file")
        with (
            uploads.one(grant.name, Fraction(1)),
            await spool_body(request, length, options.body_seconds_max) as piece,
        ):
            taken = (name, path, sha256, size, offset, piece, grant.run_bytes_max)
            return json_response({"received": await asyncio.to_thread(arriving.take, *taken)})

    @routes.post(where, responses=answers(_ADDED, "The run is in the database."))
    async def finish(name: str, caller: Sender) -> Response:
        """Verify what has come, make it the run, and read it into the database."""
        await owner(name, caller)
        run = await asyncio.to_thread(arriving.finish, name)
        return json_response({"run": await asyncio.to_thread(add_place, database, run, name)})

    return routes


def _require_own(database: WorkloadDatabase, arriving: ArrivingRuns, name: str, token: str) -> None:
    """Raise `Problem` 403 unless a run of that name is for this token to send: the first one keeps the name."""
    here = str((arriving.folder / name).absolute())
    with database.sql.reading() as connection:
        place = connection.execute(of_run(name, SOURCE.c.place)).scalar()
    if place not in (None, here) or not claim_upload(database, name, token):
        raise Problem(403, "taken", "a run of that name is not this token's; send it under another name")

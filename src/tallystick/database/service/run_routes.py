"""Routes for runs: their files, records with proofs, segments that are opened, and challenges on record."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, Path as InPath, Request
from fastapi.responses import Response
from pydantic import Field, ValidationError

from tallystick.core.canonical_json import Json, encode, is_deep
from tallystick.core.digests import digest
from tallystick.core.documents import Count, Document, Positive, explain
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import read_json
from tallystick.database.bulk import insert_new, inserted
from tallystick.database.indexing.discovery import discover
from tallystick.database.indexing.sources import of_run, place_of
from tallystick.database.replayable import ReplayKind
from tallystick.database.schema import ANCHOR, CHALLENGE, RESPONSE, RUN
from tallystick.database.service.access import AskedBy, Challenger, Opener, Reader, ServiceOptions
from tallystick.database.service.responses import (
    COUNT,
    DIGITS,
    FILE,
    answers,
    body_of,
    file_response,
    json_response,
    list_of,
    object_of,
)
from tallystick.database.service.watching import files_of_a_run
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.store.directories import InferenceDirectory, claims_inference
from tallystick.formats.store.folders import OPEN_TO_READERS, check_file_name, files_of
from tallystick.formats.store.log import open_line
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.segment_opening import open_segment

# Segments that were opened for verifiers: each is written once, and kept while it is asked for.

Key = tuple[str, str, int, int]
AT_ONCE = 2


@dataclass
class OpenedSegments:
    """At most `most` segments lie in a folder of their own, the one that was not used longest goes first."""

    most: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="tally-segments-")))
    _held: OrderedDict[Key, Path] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _writing: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(AT_ONCE))
    _count: int = 0

    def opened(self, name: str, run: RunDirectory, start: int, end: int) -> Path:
        """The folder of a segment; raises `Problem` 429 while too many others are written, and as `open_segment`."""
        key = (name, str(run.claim().identity), start, end)
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        if not self._writing.acquire(blocking=False):
            raise Problem(429, "busy", "other segments are being opened; come back", headers={"Retry-After": "1"})
        try:
            return self._written(key, run)
        finally:
            self._writing.release()

    def close(self) -> None:
        """Delete all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _written(self, key: Key, run: RunDirectory) -> Path:
        with self._lock:
            self._count += 1
            out = self.folder / str(self._count)
        try:
            open_segment(run, key[2], key[3], out)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
        with self._lock:
            if key in self._held:  # somebody else was as fast
                shutil.rmtree(out, ignore_errors=True)
            else:
                self._held[key] = out
            gone = [self._held.popitem(last=False)[1] for _ in range(len(self._held) - self.most)]
            opened = self._held[key]
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)
        return opened


# Where the runs of the database lie, and which of their files are sent.

Recorded = RunDirectory | InferenceDirectory


def find_run(database: WorkloadDatabase, name: str) -> Recorded:
    """The training run or the recorded calls of that name; raises `Problem` 404 where there are none."""
    try:
        with database.sql.reading() as connection:
            path = Path(place_of(connection, "run", name if "\0" not in name else ""))
        return InferenceDirectory(path) if claims_inference(path) else RunDirectory(path)
    except UnavailableError:
        raise Problem(404, "absent", "there is no run of that name") from None


def find_training(database: WorkloadDatabase, name: str) -> RunDirectory:
    """The training run of that name; raises `Problem` 404 where there is none."""
    run = find_run(database, name)
    if not isinstance(run, RunDirectory):
        raise Problem(
            404, "absent", "these are calls of a model, which have no steps; an audit of the whole replays them"
        )
    return run


def find_file(folder: Path, name: str) -> Path:
    """A file of a run or segment; raises `Problem` 404 for all that is none, whatever stands there."""
    try:
        path = (folder / check_file_name(name)).resolve()
        if path.is_relative_to(folder.resolve()) and path.is_file():
            return path
    except (MalformedError, OSError):
        pass
    raise Problem(404, "absent", "there is no such file")


def scope_of(file: str) -> str:
    """What a caller must be allowed for this file of a run."""
    return "claims" if file == "claim.json" else "read" if file in OPEN_TO_READERS else "open"


# Routes for runs: their files, records with proofs, and segments that are opened for a verifier.

NUMBER_MAX: Final = 10**15
Number = Annotated[int, InPath(ge=0, le=NUMBER_MAX)]
FILES: Final = list_of(object_of({"path": {"type": "string"}, "size": COUNT}, {"sha256": DIGITS}))
SEGMENT: Final = {
    **{name: {"type": "string"} for name in ("run", "claim")},
    **{name: {"type": "integer"} for name in ("start", "end")},
    "files": FILES,
}
"""The members of the answer that names the files of a segment."""
_RANGE_OF_STEPS: Final = {
    **dict.fromkeys(("first", "last"), COUNT),
    "replay": {"enum": [str(kind) for kind in ReplayKind]},
    **{name: {"type": "string"} for name in ("missing", "mend")},
}
_DISCOVERY: Final = object_of(
    {"run": {"type": "string"}, "anchors": list_of(COUNT), "ranges": list_of(object_of(_RANGE_OF_STEPS))}
)
_RECORD: Final = object_of(
    {
        "index": {"type": "integer"},
        "proof": list_of(DIGITS),
        "record": {"type": "string", "description": "The line of the record; its leaf hash stands under the root."},
        "root": {"type": "string"},
        "size": {"type": "integer"},
    }
)


def run_routes(database: WorkloadDatabase, segments: OpenedSegments) -> APIRouter:
    """The routes over the runs that the database names."""
    routes = APIRouter(tags=["runs"])
    whole = answers(FILE, "The file.", "application/octet-stream")
    listed = object_of({"run": {"type": "string"}, "files": FILES})
    part = {206: {"description": "The part that `Range` asks for.", "content": whole[200]["content"]}}

    @routes.get("/v1/runs/{name}/files", responses=answers(listed, "The files of the run."))
    async def files(name: str, caller: Reader) -> Response:
        """The files of a run with their sizes."""
        run = await asyncio.to_thread(find_run, database, name)
        return json_response({"run": name, "files": await asyncio.to_thread(listed_files, run.path)})

    @routes.get("/v1/runs/{name}/files/{path:path}", responses=whole | part)
    async def file(request: Request, name: str, path: str, caller: AskedBy) -> Response:
        """A file of a run, or a range of its bytes."""
        caller.require(scope_of(path), name)
        run = await asyncio.to_thread(find_run, database, name)
        return await file_response(request, await asyncio.to_thread(find_file, run.path, path))

    @routes.get("/v1/runs/{name}/discovery", responses=answers(_DISCOVERY, "How its steps can be replayed."))
    async def discovery(name: str, caller: Reader) -> Response:
        """What of a training run can be replayed exactly, what only from outside, and what is missing."""
        return Response(await asyncio.to_thread(_discovery, database, name), media_type="application/json")

    @routes.get("/v1/runs/{name}/records/{number}", responses=answers(_RECORD, "The record with its proof."))
    async def record(name: str, number: Number, caller: Reader) -> Response:
        """A record of a finished run, with the proof that it stands under the root of the claim."""
        return json_response(await asyncio.to_thread(_opened_record, database, name, number))

    segment = "/v1/runs/{name}/segments/{start}-{end}"

    @routes.get(segment, responses=answers(object_of(SEGMENT), "The files of the segment."))
    async def opened(name: str, start: Number, end: Number, caller: Opener) -> Response:
        """Open the segment between two anchors: the list of its files, which are then asked for one by one."""
        return json_response(await asyncio.to_thread(opened_segment, database, segments, name, start, end))

    @routes.get(f"{segment}/files/{{path:path}}", responses=whole | part)
    async def opened_file(
        request: Request, name: str, start: Number, end: Number, path: str, caller: Opener
    ) -> Response:
        """A file of an opened segment, or a range of its bytes."""
        _, folder = await asyncio.to_thread(_segment_folder, database, segments, name, start, end)
        return await file_response(request, await asyncio.to_thread(find_file, folder, path))

    return routes


def listed_files(folder: Path, hashed: bool = False) -> list[dict[str, Any]]:
    """The files of a run or segment with their sizes, and with their SHA-256 where `hashed`."""
    entries = []
    for name in files_of(folder):
        entry: dict[str, Any] = {"path": name, "size": (folder / name).stat().st_size}
        entries.append(entry | ({"sha256": sha256_of(folder / name)} if hashed else {}))
    return entries


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_claim(run: Recorded) -> None:
    """Raise `Problem` 409 unless the run is finished."""
    if not run.claim_path.is_file():
        raise Problem(409, "unfinished", "the run has no claim yet, so there is no root to prove anything against")


def _discovery(database: WorkloadDatabase, name: str) -> bytes:
    find_training(database, name)
    with files_of_a_run():
        return discover(database, name).to_json()


def _opened_record(database: WorkloadDatabase, name: str, number: int) -> dict[str, Any]:
    run = find_run(database, name)
    require_claim(run)
    with files_of_a_run():
        log = run.claim().transcript
        if number >= log.size:
            raise Problem(404, "absent", f"the run has {log.size} records, counted from 0")
        opened = open_line(run.transcript_path, number, log.size)
        opened.check(log)
    proof = [each.hex() for each in opened.proof]
    return {
        "index": number,
        "proof": proof,
        "record": opened.line.decode(),
        "root": str(log.root),
        "size": log.size,
    }


def opened_segment(
    database: WorkloadDatabase, segments: OpenedSegments, name: str, start: int, end: int
) -> dict[str, Any]:
    """What a segment is of, and its files; raises `Problem` 404 where there are no two such anchors."""
    run, folder = _segment_folder(database, segments, name, start, end)
    files = listed_files(folder, hashed=True)
    return {"run": name, "claim": str(run.claim().identity), "start": start, "end": end, "files": files}


def _segment_folder(
    database: WorkloadDatabase, segments: OpenedSegments, name: str, start: int, end: int
) -> tuple[RunDirectory, Path]:
    run = find_training(database, name)
    require_claim(run)
    with files_of_a_run():
        try:
            return run, segments.opened(name, run, start, end)
        except UsageError:
            raise Problem(404, "absent", "there are no two such anchors: /v1/anchors names them") from None


# Challenges on record: what a verifier asked of a run, and what was handed over for it.

_ANSWER: Final = object_of({**SEGMENT, "challenge": {"type": "string"}, "response": {"type": "string"}})


class StepChallenge(Document):
    """What is asked: the segment in which a step lies, or the one from anchor `start` to anchor `end`.

    `nonce` is the verifier's, 32 bytes in hexadecimal: it shows on record how the step was drawn.
    """

    step: Positive | None = None
    start: Count | None = None
    end: Positive | None = None
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


def challenge_routes(database: WorkloadDatabase, segments: OpenedSegments, options: ServiceOptions) -> APIRouter:
    """The route with which a verifier asks on record."""
    routes = APIRouter(tags=["challenges"])
    body = body_of(StepChallenge.model_json_schema())

    @routes.post("/v1/runs/{name}/challenges", responses=answers(_ANSWER, "What is opened."), openapi_extra=body)
    async def challenge(request: Request, name: str, caller: Challenger) -> Response:
        """Ask for a step or a segment on record; the answer names the files, which are then asked for one by one."""
        data = await read_json(request, options.json_bytes_max, options.body_seconds_max)
        party = None if caller.grant is None else caller.grant.name
        return json_response(
            await asyncio.to_thread(_answer_challenge, database, segments, name, _read_challenge(data), party)
        )

    return routes


def _read_challenge(data: bytes) -> StepChallenge:
    if is_deep(data):
        raise MalformedError("the challenge: nested too deep")
    try:
        challenge = StepChallenge.model_validate_json(data)
    except ValidationError as error:
        raise MalformedError(f"the challenge: {explain(error, StepChallenge, 'the challenge')}") from None
    has_marks = challenge.start is not None and challenge.end is not None
    if (challenge.step is None) is not has_marks or (challenge.start is None) is not (challenge.end is None):
        raise MalformedError("the challenge: a step, or start and end")
    return challenge


def _answer_challenge(
    database: WorkloadDatabase, segments: OpenedSegments, name: str, wanted: StepChallenge, party: str | None
) -> dict[str, Any]:
    marks = _around(database, name, wanted.step) if wanted.step is not None else (wanted.start or 0, wanted.end or 0)
    opened = opened_segment(database, segments, name, *marks)
    document: Json = {"run": name, "claim": opened["claim"], "party": party, "asked": wanted.to_json()}
    challenge, files = digest("challenge", encode(document)), encode(opened["files"])
    response = digest("manifest", files)
    size = sum(file["size"] for file in opened["files"])
    row = {"digest": challenge, "asked": encode(wanted.to_json()).decode(), "nonce": wanted.nonce, "party": party}
    with database.writing("challenges") as connection:
        known = sa.select(CHALLENGE.c.id).where(CHALLENGE.c.digest == challenge)
        number = connection.execute(known).scalar()
        now = time.time_ns()
        if number is None:
            run = connection.execute(of_run(name, RUN.c.id)).scalar_one()
            number = inserted(connection, CHALLENGE, run=run, made_ns=now, **row)
        insert_new(connection, RESPONSE, [{"challenge": number, "digest": response, "bytes": size, "made_ns": now}])
    return {**opened, "challenge": str(challenge), "response": str(response)}


def _around(database: WorkloadDatabase, name: str, step: int) -> tuple[int, int]:
    """The anchors around a step; raises `Problem` 404 where there are none."""
    present = of_run(name.replace("\0", " "), ANCHOR.c.step).where(ANCHOR.c.present)
    with database.sql.reading() as connection:
        before = connection.execute(present.where(ANCHOR.c.step < step).order_by(ANCHOR.c.step.desc())).scalar()
        behind = connection.execute(present.where(ANCHOR.c.step >= step).order_by(ANCHOR.c.step)).scalar()
    if before is None or behind is None:
        raise Problem(404, "absent", "no two anchors of a run of that name lie around this step")
    return int(before), int(behind)

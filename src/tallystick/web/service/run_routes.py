"""Routes for runs: their files, records with proofs, and segments that are opened for a verifier."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path as InPath, Request
from fastapi.responses import Response

from tallystick.errors import UsageError
from tallystick.http.problems import Problem
from tallystick.indexing.discovery import discover
from tallystick.indexing.replayable import ReplayKind
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.layout import files_of
from tallystick.store.log import open_line
from tallystick.store.run import RunDirectory
from tallystick.web.service.access import AskedBy, Opener, Reader
from tallystick.web.service.described import answers
from tallystick.web.service.errors import files_of_a_run
from tallystick.web.service.file_bodies import file_response
from tallystick.web.service.opened_segments import OpenedSegments
from tallystick.web.service.row_routes import json_response
from tallystick.web.service.run_places import Recorded, find_file, find_run, find_training, scope_of

NUMBER_MAX: Final = 10**15
Number = Annotated[int, InPath(ge=0, le=NUMBER_MAX)]
BYTES: Final = {"type": "string", "format": "binary"}
FILES: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["path", "size"],
        "additionalProperties": False,
        "properties": {
            "path": {"type": "string"},
            "size": {"type": "integer", "minimum": 0},
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        },
    },
}
_LISTED: Final = {
    "type": "object",
    "required": ["run", "files"],
    "additionalProperties": False,
    "properties": {"run": {"type": "string"}, "files": FILES},
}
SEGMENT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["run", "claim", "start", "end", "files"],
    "additionalProperties": False,
    "properties": {
        "run": {"type": "string"},
        "claim": {"type": "string"},
        "start": {"type": "integer"},
        "end": {"type": "integer"},
        "files": FILES,
    },
}
_STEPS: Final = {"type": "integer", "minimum": 0}
_DISCOVERY: Final = {
    "type": "object",
    "required": ["run", "anchors", "ranges"],
    "additionalProperties": False,
    "properties": {
        "run": {"type": "string"},
        "anchors": {"type": "array", "items": _STEPS},
        "ranges": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["first", "last", "replay", "missing", "mend"],
                "additionalProperties": False,
                "properties": {
                    "first": _STEPS,
                    "last": _STEPS,
                    "replay": {"enum": [str(each) for each in ReplayKind]},
                    "missing": {"type": "string"},
                    "mend": {"type": "string"},
                },
            },
        },
    },
}
_RECORD: Final = {
    "type": "object",
    "required": ["index", "proof", "record", "root", "size"],
    "additionalProperties": False,
    "properties": {
        "index": {"type": "integer"},
        "proof": {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
        "record": {"type": "string", "description": "The line of the record; its leaf hash stands under the root."},
        "root": {"type": "string"},
        "size": {"type": "integer"},
    },
}


def run_routes(database: WorkloadDatabase, segments: OpenedSegments) -> APIRouter:
    """The routes over the runs that the database names."""
    routes = APIRouter(tags=["runs"])
    whole = answers(BYTES, "The file.", "application/octet-stream")
    part = {206: {"description": "The part that `Range` asks for.", "content": whole[200]["content"]}}

    @routes.get("/v1/runs/{name}/files", responses=answers(_LISTED, "The files of the run."))
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

    @routes.get(segment, responses=answers(SEGMENT, "The files of the segment."))
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
    found = []
    for name in files_of(folder):
        entry: dict[str, Any] = {"path": name, "size": (folder / name).stat().st_size}
        found.append(entry | ({"sha256": sha256_of(folder / name)} if hashed else {}))
    return found


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

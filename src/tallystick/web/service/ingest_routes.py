"""Routes for recorders: a run is sent in pieces, verified, and read into the database."""

from __future__ import annotations

import asyncio
import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from tallystick.http.bodies import declared_size, spool_body
from tallystick.http.problems import Problem
from tallystick.http.uploads import Uploads
from tallystick.indexing.add import add_place
from tallystick.store.database.schema import SOURCE
from tallystick.store.database.tokens import TokenGrant, claim_upload
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.web.service.access import Caller, Sender
from tallystick.web.service.arriving import ArrivingRuns
from tallystick.web.service.described import answers
from tallystick.web.service.row_routes import json_response
from tallystick.web.service.run_routes import FILES
from tallystick.web.service.settings import ServiceOptions

SIZE_MAX: Final = 1 << 42
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
Size = Annotated[int, Query(ge=0, le=SIZE_MAX)]
Sha256 = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
_STATE: Final = {
    "type": "object",
    "required": ["files", "parts"],
    "additionalProperties": False,
    "properties": {"files": FILES, "parts": {"type": "object", "additionalProperties": {"type": "integer"}}},
}
_TAKEN: Final = {
    "type": "object",
    "required": ["received"],
    "additionalProperties": False,
    "properties": {"received": {"type": "integer", "minimum": 0}},
}
_ADDED: Final = {
    "type": "object",
    "required": ["run"],
    "additionalProperties": False,
    "properties": {"run": {"type": "string"}},
}
_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


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
        asked = sa.select(SOURCE.c.place).where(SOURCE.c.kind == "run", SOURCE.c.name == name)
        place = connection.execute(asked).scalar()
    if place not in (None, here) or not claim_upload(database, name, token):
        raise Problem(403, "taken", "a run of that name is not this token's; send it under another name")

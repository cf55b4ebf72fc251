"""Challenges on record: what a verifier asked of a run, and what was handed over for it."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, ValidationError

from tallystick.core.canonical_json import Json, encode, is_deep
from tallystick.core.digests import digest
from tallystick.core.documents import Count, Document, Positive, explain
from tallystick.core.errors import MalformedError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import read_json
from tallystick.database.bulk import inserted
from tallystick.database.indexing.sources import of_run
from tallystick.database.schema import ANCHOR, CHALLENGE, RESPONSE, RUN
from tallystick.database.service.access import Challenger, ServiceOptions
from tallystick.database.service.responses import answers, body_of, json_response, object_of
from tallystick.database.service.run_routes import SEGMENT, OpenedSegments, opened_segment
from tallystick.database.workload_database import WorkloadDatabase

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
        return json_response(await asyncio.to_thread(_answer, database, segments, name, _read(data), party))

    return routes


def _read(data: bytes) -> StepChallenge:
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


def _answer(
    database: WorkloadDatabase, segments: OpenedSegments, name: str, wanted: StepChallenge, party: str | None
) -> dict[str, Any]:
    marks = _around(database, name, wanted.step) if wanted.step is not None else (wanted.start or 0, wanted.end or 0)
    opened = opened_segment(database, segments, name, *marks)
    document: Json = {"run": name, "claim": opened["claim"], "party": party, "asked": wanted.to_json()}
    challenge, files = digest("challenge", encode(document)), encode(opened["files"])
    response = digest("manifest", files)
    size = sum(each["size"] for each in opened["files"])
    row = {"digest": challenge, "asked": encode(wanted.to_json()).decode(), "nonce": wanted.nonce, "party": party}
    with database.writing("challenges") as connection:
        known = sa.select(CHALLENGE.c.id).where(CHALLENGE.c.digest == challenge)
        number = connection.execute(known).scalar()
        now = time.time_ns()
        if number is None:
            run = connection.execute(of_run(name, RUN.c.id)).scalar_one()
            number = inserted(connection, CHALLENGE, run=run, made_ns=now, **row)
        same = sa.select(RESPONSE.c.bytes).where(RESPONSE.c.challenge == number, RESPONSE.c.digest == response)
        if connection.execute(same).first() is None:
            values = {"challenge": number, "digest": response, "bytes": size, "made_ns": now}
            connection.execute(sa.insert(RESPONSE).values(**values))
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

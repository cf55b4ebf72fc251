"""The HTTP interface of a local coordinator (`spec/coordinator.md`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from fractions import Fraction
from typing import Final
from weakref import WeakValueDictionary

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import Digest, parse_digest
from tallystick.core.errors import MalformedError, RuleError, TallyError
from tallystick.core.http.problems import Problem, answer_errors, problem_of, problem_response
from tallystick.core.http.server import Uploads, declared_size, read_body, spool_body
from tallystick.disputes.coordinators.local.board import blob_digest
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator, admit, status_of
from tallystick.disputes.coordinators.local.signed import (
    DELEGATION_BYTES_MAX,
    SIGNED_MOVE_BYTES_MAX,
    Delegation,
    put_message,
)
from tallystick.disputes.game.context import withdrawable
from tallystick.disputes.game.state import Dispute
from tallystick.formats.signing import check_signature

PAGE_ENTRIES: Final = 256
PAGE_BYTES: Final = 4 << 20
KEY_HEADER: Final = "Tally-Key"
SIGNATURE_HEADER: Final = "Tally-Signature"
DELEGATION_HEADER: Final = "Tally-Delegation"
_DISPUTE: Final = TypeAdapter(Dispute)


@dataclass(frozen=True)
class BodyTimeouts:
    """Timeouts in seconds: for a whole body, and for the lag of a blob behind the slowest accepted rate."""

    body: float = 30.0
    blob: float = 10.0


def create_app(place: LocalCoordinator, patience: BodyTimeouts | None = None) -> FastAPI:
    """The application over one coordinator, which the caller opens and closes."""
    app = FastAPI(title="tally coordinator", docs_url=None, redoc_url=None, openapi_url=None)
    patience = patience or BodyTimeouts()
    _answer_errors_alike(app)
    _add_reading(app, place)
    _add_moves(app, place, patience)
    _add_blobs(app, place, patience)
    return app


def _add_reading(app: FastAPI, place: LocalCoordinator) -> None:
    @app.get("/v1/rules")
    async def rules() -> Response:
        return _json(place.charter.to_bytes())

    @app.get("/v1/time")
    async def time() -> Response:
        chain, now = await asyncio.to_thread(lambda: (place.chain(), place.now()))
        return _json(encode({"entries": chain.count, "head": chain.head, "time": now}))

    @app.get("/v1/entries")
    async def entries(start: str = "0") -> Response:
        number = _number(start, "start")
        page = await asyncio.to_thread(place.accepted, number, PAGE_ENTRIES, PAGE_BYTES)
        return Response(b"".join(each.to_bytes() + b"\n" for each in page), media_type="application/jsonl")

    @app.get("/v1/disputes/{number}")
    async def dispute(number: str) -> Response:
        disputes = (await asyncio.to_thread(place.chain)).state.disputes
        wanted = _number(number, "dispute")
        if wanted >= len(disputes):
            raise Problem(404, "absent", f"there is no dispute {wanted}")
        return _json(encode(_DISPUTE.dump_python(disputes[wanted], mode="json")))

    @app.get("/v1/accounts/{party}")
    async def account(party: str) -> Response:
        return _json(encode(await asyncio.to_thread(_account, place, party)))


def _add_moves(app: FastAPI, place: LocalCoordinator, patience: BodyTimeouts) -> None:
    turns = WeakValueDictionary[str, asyncio.Lock]()  # moves of one party wait for each other without using a thread

    @app.post("/v1/moves")
    async def move(request: Request) -> Response:
        body = await read_body(request, SIGNED_MOVE_BYTES_MAX, patience.body)
        signed, _ = await asyncio.to_thread(admit, body, place.charter)
        async with turns.setdefault(signed.key, asyncio.Lock()):
            receipt = await asyncio.to_thread(place.take, body)
        return _json(receipt.to_bytes())


def _add_blobs(app: FastAPI, place: LocalCoordinator, patience: BodyTimeouts) -> None:
    uploads = Uploads()

    @app.put("/v1/blobs/{name}")
    async def put(request: Request, name: str) -> Response:
        digest = parse_digest(name, "blob")
        size, owner, share = await asyncio.to_thread(_announced, request, place, digest)
        with uploads.one(owner, share):
            await _upload(request, place, digest, size, owner, patience.blob)
        return Response(status_code=204)

    @app.get("/v1/blobs/{name}")
    @app.head("/v1/blobs/{name}")
    async def get(request: Request, name: str) -> Response:
        digest = parse_digest(name, "blob")
        size = await asyncio.to_thread(place.blobs.size, digest)
        if size is None:
            raise Problem(404, "absent", f"{digest}: not at the board")
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        if request.method == "HEAD":
            return Response(headers=headers)
        return StreamingResponse(place.blobs.pieces(digest), headers=headers)


async def _upload(
    request: Request, place: LocalCoordinator, name: Digest, size: int, owner: str, seconds: float
) -> None:
    """Read the body, check its digest, and keep it."""
    with await spool_body(request, size, seconds) as file:
        if await asyncio.to_thread(blob_digest, file) != name:
            raise Problem(422, "digest", f"the body is not what {name} names")
        file.seek(0)
        await asyncio.to_thread(place.keep, name, size, file, owner)


def _announced(request: Request, place: LocalCoordinator, name: Digest) -> tuple[int, str, Fraction]:
    """The size and owner of a blob, from headers that the owner signed, and the owner's share of the board.

    All refusals come before the body is read.
    """
    size = declared_size(request, place.blobs.quotas.blob)
    if size is None:
        raise Problem(411, "malformed", "Content-Length: needed for a blob")
    key, delegated = request.headers.get(KEY_HEADER, ""), request.headers.get(DELEGATION_HEADER)
    check_signature(key, request.headers.get(SIGNATURE_HEADER, ""), put_message(place.identity, name, size))
    owner = key if delegated is None else _delegated(place, key, delegated)
    return size, owner, place.allowance(owner).share


def _delegated(place: LocalCoordinator, key: str, text: str) -> str:
    """The party for which a delegate stores; raises `MalformedError`, `ProofError` or `RuleError` if it may not."""
    if len(text) > DELEGATION_BYTES_MAX:
        raise MalformedError(f"{DELEGATION_HEADER}: longer than {DELEGATION_BYTES_MAX} bytes")
    delegation = Delegation.from_bytes(text.encode(), DELEGATION_HEADER)
    delegation.check(place.identity, key)
    delegation.check_time(place.now())
    return delegation.party


def _account(place: LocalCoordinator, party: str) -> Json:
    if len(party) != 64 or set(party) - set("0123456789abcdef"):
        raise MalformedError("party: no Ed25519 key of 64 hexadecimal digits")
    state, now = place.state, place.now()
    owed: list[Json] = [{"amount": each.amount, "ripe": each.ripe} for each in state.owed.get(party, ())]
    return {
        "blobs": place.blobs.held_for(party),
        "owed": owed,
        "purse": place.purse(party),
        "withdrawable": withdrawable(state, party, now),
    }


def _answer_errors_alike(app: FastAPI) -> None:
    closing = {"Connection": "close"}  # uvicorn hangs up after a failure
    answer_errors(
        app,
        problem_response,
        {
            RuleError: lambda _, error: Problem(status_of(error.code), error.code, str(error)),
            TallyError: lambda _, error: problem_of(error),
            HTTPException: lambda _, error: Problem(
                error.status_code, "route", str(error.detail), headers=dict(error.headers or {})
            ),
            ClientDisconnect: lambda _, __: Problem(400, "malformed", "the client left"),
            Exception: lambda _, __: Problem(500, "failed", "the coordinator failed at this request", headers=closing),
        },
    )


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise MalformedError(f"{what}: no number")
    return int(text)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")

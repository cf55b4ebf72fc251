"""What all servers share: errors, receipts, keys, and calls of functions in messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tallystick.core.digests import Digest
from tallystick.core.errors import UnavailableError
from tallystick.core.http.problems import Problem, answer_errors, check_key
from tallystick.formats.claims import ModelCard
from tallystick.formats.completions import CALLED, message_of
from tallystick.formats.receipt import SignedReceipt
from tallystick.recording.serving.errors import error_response, invalid
from tallystick.recording.serving.exchanges import ReceiptBook

CLIENT_GONE: Final = 499
"""The status in logs when the client has disconnected; it reaches nobody."""


@dataclass(frozen=True)
class ServerOptions:
    """Settings of the operator: `keys` admit customers; `auditors` are the keys that may list all receipts."""

    name: str
    keys: frozenset[str] = frozenset()
    auditors: frozenset[str] = frozenset()
    body_bytes_max: int = 1 << 20
    body_seconds_max: float = 30.0


def answer_errors_alike(app: FastAPI) -> None:
    """Answer every error in the form of the OpenAI API."""
    answer_errors(
        app,
        error_response,
        {
            HTTPException: _unrouted,
            ClientDisconnect: lambda _, __: Problem(CLIENT_GONE, None, "the client left"),
            Exception: lambda _, __: Problem(500, "internal_error", "the server failed at this request"),
        },
    )


def add_receipts(app: FastAPI, book: ReceiptBook, options: ServerOptions) -> None:
    """Add the routes for receipts: customers fetch one by its request, auditors list all."""

    @app.get("/v1/receipts")
    async def receipts(request: Request, after: str = "0") -> Response:
        if not options.auditors:
            raise Problem(403, "no_auditors", "this server lists receipts to nobody; start it with an auditors' key")
        check_key(request, options.auditors)
        if not after.isdecimal() or len(after) > 15:
            raise invalid("after: no receipt number", "after")
        lines = await asyncio.to_thread(book.after, int(after))
        return Response(b"".join(line + b"\n" for line in lines), media_type="application/jsonl")

    @app.get("/v1/receipts/{request_id}")
    async def one_receipt(request: Request, request_id: str) -> Response:
        check_customer(request, options)
        try:
            return Response(book.of(request_id), media_type="application/json")
        except UnavailableError as error:
            raise Problem(404, "not_found", str(error), "request_id") from None


def add_key(app: FastAPI, key: str, model: Digest, card: ModelCard | None) -> None:
    """Add the route for the public key, the model root, and the card if it is known."""

    @app.get("/v1/key")
    async def public_key() -> Response:
        return JSONResponse({"key": key, "model": model} | ({"card": card.to_json()} if card else {}))


def receipt_headers(request_id: str, receipts: Sequence[SignedReceipt]) -> dict[str, str]:
    """Response headers: the request's id and the identities of its receipts."""
    return {"X-Request-Id": request_id, "Tally-Receipt": ", ".join(signed.receipt.identity for signed in receipts)}


def said_message(text: str, form: str | None, choice: str, finish: str) -> tuple[dict[str, Any], str]:
    """The text and the calls of an answer in the field that each belongs to, and its finish reason.

    `form` says how it calls (`formats.completions.call_form`), `choice` is the id of the choice.
    """
    text, calls = message_of(text, form, choice)
    message: dict[str, Any] = {"content": text} if text else {}
    return message | ({"tool_calls": calls} if calls else {}), CALLED if calls and finish == "stop" else finish


def as_delta(message: dict[str, Any]) -> dict[str, Any]:
    """The same message in the chunk of a stream, whose calls have numbers."""
    calls = [{"index": place, **call} for place, call in enumerate(message.get("tool_calls", ()))]
    return message | ({"tool_calls": calls} if calls else {})


def check_customer(request: Request, options: ServerOptions) -> None:
    """Raise `Problem` if this server requires keys and the request carries none of them."""
    if options.keys:
        check_key(request, options.keys | options.auditors)


def _unrouted(request: Request, error: HTTPException) -> Problem:
    message = f"{request.method} {request.url.path}: {str(error.detail).lower()}"
    return Problem(error.status_code, None, message, headers=dict(error.headers or {}))

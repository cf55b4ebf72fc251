"""A reverse proxy in front of a server of the OpenAI API; it adds receipts to the responses.

Its receipts bind the answer, its place in the order of receipts, the key and the nonce. They say nothing about the
computation.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from tallystick.core.canonical_json import loose_json
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import read_body
from tallystick.formats.claims import ModelCard
from tallystick.formats.completions import receipt_fields
from tallystick.formats.receipt import SignedReceipt
from tallystick.recording.receipts import ReceiptChain
from tallystick.recording.serving.application import (
    ServerOptions,
    add_key,
    add_receipts,
    answer_errors_alike,
    receipt_headers,
)
from tallystick.recording.serving.errors import DONE, ClosingStream, error_object, event_of, invalid
from tallystick.recording.serving.exchanges import Exchange, ModelTokenizer, ReceiptBook

WITNESSED: Final = ("/v1/chat/completions", "/v1/completions")
HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that concern one connection only (RFC 9110 §7.6.1)."""
REWRITTEN: Final = frozenset({"host", "content-length", "accept-encoding", "content-encoding"})
ANSWER_BYTES_MAX: Final = 64 << 20
Close = Callable[..., list[SignedReceipt]]
"""Ends an exchange and issues its receipts; `is_whole` says whether the whole response has arrived."""


@dataclass(frozen=True)
class Upstream:
    """The server behind the proxy: its address; the promised model's card and tokenizer, if they are known."""

    url: str
    card: ModelCard | None = None
    tokenizer: ModelTokenizer | None = None
    connect_seconds: float = 10.0
    silence_seconds: float = 600.0

    @property
    def base(self) -> httpx.URL:
        """The address without a trailing `/v1`, because every forwarded path begins with it."""
        return httpx.URL(self.url.rstrip("/").removesuffix("/v1"))


def create_proxy(upstream: Upstream, chain: ReceiptChain, book: ReceiptBook, options: ServerOptions) -> FastAPI:
    """The application in front of `upstream`; `chain` signs its receipts, and `book` lists them."""
    timeout = httpx.Timeout(upstream.silence_seconds, connect=upstream.connect_seconds)
    client = httpx.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()
        chain.close()
        book.close()

    app = FastAPI(title="tally proxy", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    answer_errors_alike(app)
    add_receipts(app, book, options)
    add_key(app, chain.key.public, chain.model, upstream.card)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/v1/{path:path}", methods=["GET", "POST", "DELETE"])
    async def forward(request: Request, path: str) -> Response:
        exchange, body = None, await read_body(request, options.body_bytes_max, options.body_seconds_max)
        if request.method == "POST" and f"/v1/{path}" in WITNESSED:
            try:
                asked = loose_json(body)
            except ValueError:
                raise invalid("the body is no JSON") from None
            if not isinstance(asked, dict):
                raise invalid("the body is no JSON object")
            exchange = Exchange(asked, upstream.tokenizer)
            body = body if len(exchange.body) == len(asked) else json.dumps(exchange.body).encode()
        answer = await _send(client, upstream.base, request, body)
        if exchange is None or exchange.body.get("model") != options.name or answer.status_code != 200:
            return _passed_on(answer)
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            events = _witnessed_events(answer, exchange, partial(exchange.close, chain, book))
            return ClosingStream(events, headers=_kept(answer.headers.multi_items()))
        return await _witnessed(answer, exchange, partial(exchange.close, chain, book))

    return app


async def _send(client: httpx.AsyncClient, base: httpx.URL, request: Request, body: bytes) -> httpx.Response:
    path = request.scope.get("raw_path") or request.url.path.encode()
    if b".." in path or b"%2e" in path.lower():
        raise invalid("a path does not go up")
    query = request.scope.get("query_string", b"")
    url = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + path.split(b"?")[0] + (b"?" + query if query else b""))
    headers = _kept(request.headers.items()) | {"accept-encoding": "identity"}
    try:
        return await client.send(client.build_request(request.method, url, headers=headers, content=body), stream=True)
    except httpx.TimeoutException:
        raise Problem(504, "upstream_timeout", "the server behind does not answer in time") from None
    except httpx.HTTPError:
        raise Problem(502, "upstream_unreachable", "the server behind cannot be reached") from None


def _kept(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers that are forwarded."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {part.strip().lower() for name, value in pairs if name == "connection" for part in value.split(",")}
    return {name: value for name, value in pairs if name not in HOP_BY_HOP | REWRITTEN | named}


def _passed_on(answer: httpx.Response) -> Response:
    """The response unchanged, without receipts."""

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            async for part in answer.aiter_bytes():
                yield part
        finally:
            await answer.aclose()

    return ClosingStream(parts(), status=answer.status_code, headers=_kept(answer.headers.multi_items()))


async def _witnessed(answer: httpx.Response, exchange: Exchange, close: Close) -> Response:
    """The response with receipts added; a receipt of the server itself becomes `upstream_receipt`."""
    body = exchange.add(await _read_object(answer))
    issued = close(is_whole=True)
    headers = {} if not issued else receipt_headers(issued[0].receipt.request.id, issued)
    kept = _kept(answer.headers.multi_items())
    return Response(json.dumps(body | closing(body, issued)), headers=kept | headers)


def closing(answer: Mapping[str, Any], issued: list[SignedReceipt]) -> dict[str, Any]:
    """The last fields of an answer: its receipts, and as `upstream_receipt` one by the server behind."""
    fields: dict[str, Any] = {"upstream_receipt": answer["receipt"]} if "receipt" in answer else {}
    return fields | receipt_fields([signed.to_json() for signed in issued])


async def _read_object(answer: httpx.Response) -> dict[str, Any]:
    body = bytearray()
    try:
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > ANSWER_BYTES_MAX:
                raise Problem(502, "upstream_malformed", "the server behind answers at too great a length")
        value = loose_json(bytes(body))
    except httpx.HTTPError:
        raise Problem(502, "upstream_unreachable", "the server behind broke off") from None
    except ValueError:
        raise Problem(502, "upstream_malformed", "the server behind answers with what is no JSON") from None
    finally:
        await answer.aclose()
    if not isinstance(value, dict):
        raise Problem(502, "upstream_malformed", "the server behind answers with what is no object")
    return value


async def _witnessed_events(answer: httpx.Response, exchange: Exchange, close: Close) -> AsyncGenerator[bytes, None]:
    """The events as they arrive. Once a choice has ended, an event waits for the next: the last gets the receipts."""
    waiting: dict[str, Any] | None = None
    is_whole = False
    try:
        async for data in _events(answer):
            is_whole = data == b"[DONE]"
            if is_whole:
                break
            chunk = loose_json(data)
            if not isinstance(chunk, dict):
                raise ValueError("no object")
            chunk = exchange.add(chunk)
            if waiting is not None:
                yield event_of(waiting)
            waiting = chunk if exchange.is_finished else None
            if waiting is None:
                yield event_of(chunk)
        issued = close(is_whole=is_whole)
        if waiting is not None:
            yield event_of(waiting | closing(waiting, issued))
        yield DONE
    except (httpx.HTTPError, OSError, ValueError):
        yield event_of(error_object(Problem(502, "upstream_unreachable", "the server behind broke off")))
    finally:
        with suppress(OSError):
            close(is_whole=False)
        await answer.aclose()


async def _events(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The data lines of server-sent events; comments and other fields are skipped."""
    rest, length = b"", 0
    async for part in answer.aiter_bytes():
        length += len(part)
        *lines, rest = (rest + part).split(b"\n")
        if length > ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()

"""What comes in over HTTP before it means anything: bodies of bounded size, and keys."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection

from fastapi import Request

from tallystick.serving.refusals import Refusal, invalid


async def read_json(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """The body of a JSON request; raises `Refusal` if it is of another type, too large or too slow."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise invalid("send the request as Content-Type: application/json")
    return await read_body(request, bytes_max, seconds_max)


async def read_body(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """The body of a request; raises `Refusal` if it is too large or too slow."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > bytes_max:
        raise _too_large(bytes_max)
    try:
        async with asyncio.timeout(seconds_max):
            return await _bounded(request, bytes_max)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {seconds_max:g} seconds", None, "timeout") from None


def check_key(request: Request, keys: Collection[str]) -> None:
    """Raise `Refusal` with status 401 unless the request carries one of `keys` as its bearer token."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.encode("latin-1")  # the bytes on the wire: headers are read as Latin-1
    if scheme.lower() != "bearer" or not any(hmac.compare_digest(token, key.encode()) for key in keys):
        message = "a valid key is needed: Authorization: Bearer KEY"
        raise Refusal(401, message, None, "invalid_api_key", {"WWW-Authenticate": "Bearer"})


async def until_left(request: Request) -> None:
    """Return when the client has gone; to be called after the body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _bounded(request: Request, bytes_max: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
    return bytes(body)


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(413, f"the body is larger than {bytes_max} bytes", None, "request_too_large")

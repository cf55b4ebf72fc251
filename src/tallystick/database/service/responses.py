"""What the service answers with: JSON by its schema, and files, whole or a range of bytes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, Final

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from tallystick.core.http.problems import MEDIA_TYPE, Problem

# JSON: the schema of an answer in OpenAPI, and the answer itself.

Schema = dict[str, Any]
DIGITS: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
FILE: Final[Schema] = {"type": "string", "format": "binary"}
REFUSED: Final[dict[int | str, dict[str, Any]]] = {
    status: {"description": what, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for status, what in (("4XX", "The request is refused."), ("503", "The service cannot answer now."))
}


def object_of(properties: Schema, optional: Schema | None = None) -> Schema:
    """The schema of an object with these members, the `optional` ones aside all of them required, and no others."""
    return {
        "type": "object",
        "required": [*properties],
        "additionalProperties": False,
        "properties": properties | (optional or {}),
    }


def list_of(items: Schema) -> Schema:
    """The schema of a list."""
    return {"type": "array", "items": items}


def answers(schema: Schema, what: str, media_type: str = "application/json") -> Any:
    """The responses of an operation that answers with `schema`, or refuses."""
    return {200: {"description": what, "content": {media_type: {"schema": schema}}}, **REFUSED}


def body_of(schema: Schema, media_type: str = "application/json") -> dict[str, Any]:
    """What OpenAPI says of an operation that needs a body."""
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def json_response(value: Any) -> Response:
    """JSON values as a response."""
    return Response(json.dumps(value, separators=(",", ":"), allow_nan=False), media_type="application/json")


# Files as the bodies of responses: streamed in pieces, whole or a range of bytes (RFC 9110).

PIECE: Final = 1 << 18
_RANGE: Final = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


async def file_response(request: Request, path: Path) -> Response:
    """The file, or the range of it that the request asks for; raises `Problem` 416 for one that lies outside."""
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError:
        raise Problem(404, "absent", "there is no such file") from None
    try:
        status = path.stat()
        tag = f'"{status.st_size:x}-{status.st_mtime_ns:x}"'
        start, end = _range(request, status.st_size, tag)
        headers = {"Accept-Ranges": "bytes", "Content-Length": str(end - start), "ETag": tag}
        is_part = (start, end) != (0, status.st_size)
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{status.st_size}"
        if request.method == "HEAD":
            file.close()
            return Response(headers=headers, media_type="application/octet-stream")
        pieces = _pieces(file, start, end - start)
        return StreamingResponse(pieces, 206 if is_part else 200, headers, "application/octet-stream")
    except BaseException:
        file.close()
        raise


def _range(request: Request, size: int, tag: str) -> tuple[int, int]:
    """First byte and the one behind the last; the whole file where the client's copy is of another state of it."""
    text = request.headers.get("range")
    if text is None or request.headers.get("if-range", tag) != tag or request.method == "HEAD":
        return 0, size
    parts = _RANGE.fullmatch(text.strip())
    if parts is None or parts[0] == "bytes=-":
        raise Problem(416, "range", "one range is sent: bytes=A-B", headers={"Content-Range": f"bytes */{size}"})
    first, last = parts[1], parts[2]
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= end:
        raise Problem(416, "range", f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"})
    return start, end


async def _pieces(file: IO[bytes], start: int, length: int) -> AsyncIterator[bytes]:
    with file:
        await asyncio.to_thread(file.seek, start)
        while length > 0:
            piece = await asyncio.to_thread(file.read, min(PIECE, length))
            if not piece:
                raise EOFError("the file became shorter while it was sent")
            length -= len(piece)
            yield piece

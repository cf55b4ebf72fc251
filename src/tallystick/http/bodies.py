"""Request bodies, read with a limit on size and time before anything else looks at them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import IO, Final

from fastapi import Request

from tallystick.http.problems import Problem

BYTES_PER_SECOND_MIN: Final = 1 << 17


async def read_json(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """The body of a JSON request; raises `Problem` if it is of another type, too large or too slow."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Problem(400, "malformed", "send the request as Content-Type: application/json")
    return await read_body(request, bytes_max, seconds_max)


async def read_body(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """The whole body; raises `Problem` if it is too large or too slow."""
    declared_size(request, bytes_max)
    return b"".join([part async for part in _parts(request, bytes_max, seconds_max)])


async def spool_body(request: Request, size: int, seconds_behind: float) -> IO[bytes]:
    """A body of exactly `size` bytes in an unnamed temporary file; raises `Problem` for another size or a slow body.

    A body is too slow if it falls more than `seconds_behind` behind a constant rate of `BYTES_PER_SECOND_MIN`.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  the caller closes it
    try:
        async for part in _parts(request, size, seconds_behind, 1 / BYTES_PER_SECOND_MIN):
            file.write(part)
        if file.tell() != size:
            raise Problem(400, "malformed", f"the body ended after {file.tell()} of {size} bytes")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def declared_size(request: Request, bytes_max: int) -> int | None:
    """The size in the Content-Length header, or `None`; raises `Problem` if it is too large or not a number."""
    declared = request.headers.get("content-length")
    if declared is None:
        return None
    if not (declared.isascii() and declared.isdecimal()):
        raise Problem(400, "malformed", "Content-Length: no number")
    if len(declared) > 15 or int(declared) > bytes_max:
        raise _too_large(bytes_max)
    return int(declared)


async def until_left(request: Request) -> None:
    """Return when the client has disconnected; call it after the body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _parts(
    request: Request, bytes_max: int, seconds_max: float, seconds_per_byte: float = 0.0
) -> AsyncIterator[bytes]:
    """The body in parts as they arrive; each received byte extends the deadline by `seconds_per_byte`."""
    size, end = 0, asyncio.get_running_loop().time() + seconds_max
    try:
        async with asyncio.timeout_at(end) as limit:
            async for part in request.stream():
                size += len(part)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                limit.reschedule(end + size * seconds_per_byte)
                yield part
    except TimeoutError:
        raise Problem(408, "slow", f"the body is too slow: {size} bytes have come") from None


def _too_large(bytes_max: int) -> Problem:
    return Problem(413, "size", f"the body is larger than {bytes_max} bytes")

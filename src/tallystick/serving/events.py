"""Server-sent events, and streams that are closed when the client disconnects."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

DONE: Final = b"data: [DONE]\n\n"
EVENT_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""`X-Accel-Buffering` asks proxies not to buffer events."""


class ClosingStream(StreamingResponse):
    """A streamed response that always closes its source at the end and then calls `close`, also after an error."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        close: Callable[[], None] = lambda: None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(parts, status, headers)
        self._parts, self._close = parts, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, then close it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._parts.aclose()
            self._close()


def event_of(value: Any) -> bytes:
    """One server-sent event with `value` as JSON."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"

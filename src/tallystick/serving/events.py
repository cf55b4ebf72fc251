"""Server-sent events, and streams that are closed when nobody listens any more."""

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
"""The last one asks proxies not to gather events."""


class ClosingStream(StreamingResponse):
    """A stream whose source is closed when it ends, however it ends; then `close` is called."""

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
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._parts.aclose()
            self._close()


def event_of(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"

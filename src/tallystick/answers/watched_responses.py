"""Answers of the `openai` library as they arrive over HTTP: read beside whoever asked, and checked at their end.

The response and everything that reads it stay those of the library. Only its stream of bytes is replaced by one that
keeps a copy, and that is told when the response is closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

from tallystick.answers.watched_streams import Check, Settle, WholeAnswer
from tallystick.commitments.nesting import loose_json

EVENTS: Final = "text/event-stream"
End = Callable[[list[bytes]], Any]


def body_sent_for(response: Any) -> dict[str, Any]:
    """The JSON body of the request that was sent for a response of `httpx`."""
    body: dict[str, Any] = loose_json(response.request.content)
    return body


def watch_response(response: Any, check: Check, settle: Settle) -> None:
    """Have an unread response of `httpx` checked when it is closed, which its last byte does too.

    What `settle` raises is raised by closing.
    """
    library = import_module(type(response).__module__.partition(".")[0])  # `httpx`, or the one that took its place

    def end(parts: list[bytes]) -> Any:
        answer = partial(_answer_in, library.Response(200, headers=response.headers, content=b"".join(parts)))
        return settle(check(answer), answer)

    is_sync = isinstance(response.stream, library.SyncByteStream)
    base, copying = (library.SyncByteStream, _SyncCopy) if is_sync else (library.AsyncByteStream, _AsyncCopy)
    response.stream = type(copying.__name__, (copying, base), {})(response.stream, end)


def read_answer(response: Any) -> dict[str, Any]:
    """The JSON object of a response that was read."""
    body: dict[str, Any] = loose_json(response.content)
    return body


def _answer_in(response: Any) -> dict[str, Any]:
    """The JSON object of a response, or the one that the events of a stream form together; raises `ValueError`."""
    if not response.headers.get("content-type", "").startswith(EVENTS):
        return read_answer(response)
    whole = WholeAnswer()
    for line in response.content.split(b"\n"):
        data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
        if data and data != b"[DONE]" and isinstance(chunk := loose_json(data), Mapping):
            whole.add(chunk)
    return whole.body


class _Copy:
    """A stream of bytes that keeps what it hands on, and calls `end` with it once."""

    def __init__(self, stream: Any, end: End) -> None:
        self._stream, self._end = stream, end
        self._parts: list[bytes] = []
        self._is_ended = False

    def _ended(self) -> Any:
        is_first, self._is_ended = not self._is_ended, True
        return self._end(self._parts) if is_first else None


class _SyncCopy(_Copy):
    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            self._parts.append(part)
            yield part

    def close(self) -> None:
        self._stream.close()
        self._ended()


class _AsyncCopy(_Copy):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._parts.append(part)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
        settled = self._ended()
        if settled is not None:
            await settled

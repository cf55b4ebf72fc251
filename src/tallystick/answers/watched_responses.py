"""Answers of the `openai` library as they arrive over HTTP: read beside whoever asked, and checked at their end.

The response and everything that reads it stay those of the library. Only its stream of bytes is replaced by one that
keeps a copy, and that is told when the response is closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from tallystick.answers.asked_calls import AskedCall
from tallystick.answers.watched_streams import Check, Settle, StreamedAnswer
from tallystick.commitments.encoding import parse
from tallystick.commitments.nesting import loose_json
from tallystick.errors import MalformedError
from tallystick.transcripts.completion_form import CompletionReader
from tallystick.transcripts.event_stream import BYTES_MAX, events_of
from tallystick.transcripts.responses_reader import reader_of

End = Callable[[list[bytes]], Any]


def body_sent_for(response: Any) -> dict[str, Any]:
    """The JSON body of the request that was sent for a response of `httpx`."""
    body: dict[str, Any] = loose_json(response.request.content)
    return body


def watch_response(response: Any, call: AskedCall, check: Check, settle: Settle) -> None:
    """Have an unread response of `httpx` checked when it is closed, which its last byte does too.

    What `settle` raises is raised by closing.
    """
    library = import_module(type(response).__module__.partition(".")[0])  # `httpx`, or the one that took its place

    def end(parts: list[bytes]) -> Any:
        whole = library.Response(200, headers=response.headers, content=b"".join(parts))
        answer = partial(read_answer, call, whole)
        return settle(check(answer), answer)

    is_sync = isinstance(response.stream, library.SyncByteStream)
    base, copying = (library.SyncByteStream, _SyncCopy) if is_sync else (library.AsyncByteStream, _AsyncCopy)
    response.stream = type(copying.__name__, (copying, base), {})(response.stream, end)


def read_answer(call: AskedCall, response: Any) -> CompletionReader:
    """What a response of `httpx` amounts to: the call says in which form, and whether it is a stream.

    Raises `MalformedError` for what is no such answer.
    """
    if not call.is_stream:
        reader, value = reader_of(call.form), parse(response.content, "response", bytes_max=BYTES_MAX)
        if not isinstance(value, Mapping):
            raise MalformedError("response: an object is needed")
        reader.add(value)
        return reader
    whole = StreamedAnswer(call.form)
    for name, data in events_of(response.content):
        whole.add(data, name)
    return whole.reader


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

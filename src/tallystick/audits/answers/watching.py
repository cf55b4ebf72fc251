"""The calls, responses and streams of a wrapped client, read beside the program that made the calls."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from typing import Any, Final, Self

from tallystick.audits.answers.background import AskedCall, BackgroundChecks, Checked, asked_here
from tallystick.audits.answers.verification import json_of
from tallystick.core.canonical_json import loose_json, parse
from tallystick.core.errors import MalformedError
from tallystick.formats.completions import CompletionReader
from tallystick.formats.requests import Form
from tallystick.formats.responses_api import BYTES_MAX, ResponsesReader, events_of, reader_of

# Streams of the `openai` client, handed on chunk by chunk and joined for the check at their end.


def read_chunks(form: Form, chunks: Iterable[tuple[str, Any]]) -> CompletionReader:
    """What the chunks of a stream amount to, each with the name of its event or none.

    Raises `MalformedError` for what is no chunk of this form.
    """
    reader = reader_of(form)
    for name, chunk in chunks:
        if not isinstance(chunk, Mapping):
            raise MalformedError("stream: a chunk that is no object")
        known = ("", str(chunk.get("type"))) if isinstance(reader, ResponsesReader) else ("", "message")
        if name not in known:
            raise MalformedError(f"stream: an event under the name {name[:60]!r}, which readers pass over or read")
        if isinstance(reader, ResponsesReader):
            reader.add_event(chunk)
        else:
            reader.add(chunk)
    return reader


class _WatchedAnswer:
    """The part that streams of both kinds share: what has arrived, and its one check."""

    def __init__(self, stream: Any, call: AskedCall, checks: BackgroundChecks) -> None:
        self._stream, self._call, self._checks = stream, call, checks
        self._received: list[Any] = []
        self._checked: Future[Checked] | None = None
        self._chunks: Any = self._watched()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _finish(self) -> Future[Checked]:
        """Have what has arrived checked, once; an answer that was not read to its end cannot be checked."""
        if self._checked is None:
            self._checked = self._checks.check(self._call, self._answer)
        return self._checked

    def _answer(self) -> CompletionReader:
        return read_chunks(self._call.form, (("", json_of(chunk)) for chunk in self._received))


class WatchedStream(_WatchedAnswer):
    """Yields the chunks of a stream as they arrive; raises at its end what the verdict asks for."""

    _chunks: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self._chunks

    def __next__(self) -> Any:
        return next(self._chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream."""
        getattr(self._stream, "close", lambda: None)()
        self._checks.settle(self._finish(), self._received)

    def _watched(self) -> Iterator[Any]:
        try:
            for chunk in self._stream:
                self._received.append(chunk)
                yield chunk
        finally:
            checked = self._finish()
        self._checks.settle(checked, self._received)


class AsyncWatchedStream(_WatchedAnswer):
    """The same for a stream of the asynchronous client."""

    _chunks: AsyncIterator[Any]

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._chunks

    async def __anext__(self) -> Any:
        return await anext(self._chunks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the stream."""
        closing = getattr(self._stream, "close", None)
        if closing is not None:
            await closing()
        await self._checks.settle_coming(self._finish(), self._received)

    async def _watched(self) -> AsyncIterator[Any]:
        try:
            async for chunk in self._stream:
                self._received.append(chunk)
                yield chunk
        finally:
            checked = self._finish()
        await self._checks.settle_coming(checked, self._received)


# Answers of the `openai` library as they arrive over HTTP: read beside the program, and checked at their end.
#
# The response and everything that reads it stay those of the library. Only its stream of bytes is replaced by one that
# keeps a copy, and that is told when the response is closed.

End = Callable[[list[bytes]], Any]


def sent_for(call: AskedCall, response: Any) -> AskedCall:
    """The call with the JSON body that was sent for a response of `httpx`: arguments may be objects of the library."""
    return call.as_sent(loose_json(response.request.content))


def watch_response(call: AskedCall, response: Any, checks: BackgroundChecks) -> None:
    """Have an unread response of `httpx` checked when it is closed, which its last byte does too.

    What the verdict asks for is raised by closing.
    """
    sent = sent_for(call, response)
    checks.begin(sent)
    library = import_module(type(response).__module__.partition(".")[0])  # `httpx`, or the one that took its place
    is_sync = isinstance(response.stream, library.SyncByteStream)
    settle = checks.settle if is_sync else checks.settle_coming

    def end(parts: list[bytes]) -> Any:
        whole = library.Response(200, headers=response.headers, content=b"".join(parts))
        answer = partial(read_answer, sent, whole)
        return settle(checks.check(sent, answer), answer)

    base, copying = (library.SyncByteStream, _SyncCopy) if is_sync else (library.AsyncByteStream, _AsyncCopy)
    response.stream = type(copying.__name__, (copying, base), {})(response.stream, end)


def read_answer(call: AskedCall, response: Any) -> CompletionReader:
    """What a response of `httpx` amounts to: the call says in which form, and whether it is a stream.

    Raises `MalformedError` for what is no such answer.
    """
    if call.is_stream:
        return read_chunks(call.form, events_of(response.content))
    reader, value = reader_of(call.form), parse(response.content, "response", bytes_max=BYTES_MAX)
    if not isinstance(value, Mapping):
        raise MalformedError("response: an object is needed")
    reader.add(value)
    return reader


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


# The attributes of a client that lead to the calls whose answers are verified; all others are passed through.

CALLS: Final = ("create", "parse")
ENDPOINT: Final[Mapping[str, Any]] = {}
UNSEEDED: Final[Mapping[str, Any]] = {"seed": False}
"""An endpoint whose calls have no argument for a seed."""
PATHS: Final[Mapping[str, Any]] = {
    "chat": {"completions": ENDPOINT},
    "completions": ENDPOINT,
    "responses": UNSEEDED,
    "beta": {"chat": {"completions": ENDPOINT}},
}
Received = tuple[Any, Future[Checked] | None]
"""What a call returns, and its verdict, unless the answer is still to be read."""


class WatchedPart:
    """A client, or an attribute of one on the path to an endpoint."""

    def __init__(self, part: Any, checks: BackgroundChecks, paths: Mapping[str, Any] = PATHS) -> None:
        self._part, self._checks, self._paths = part, checks, paths

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._part, name)
        if name not in self._paths:
            return attribute
        paths = self._paths[name]
        if paths is ENDPOINT or paths is UNSEEDED:
            return _WatchedEndpoint(attribute, self._checks, has_seed=paths is ENDPOINT)
        return WatchedPart(attribute, self._checks, paths)


class _WatchedEndpoint:
    """Completions or responses of a client: the calls that ask for an answer, in every form that `openai` gives them.

    Where the client has `with_raw_response`, request and response are judged as they went over the wire; otherwise as
    the arguments of the call and the object that it returned.
    """

    def __init__(self, part: Any, checks: BackgroundChecks, has_seed: bool = True) -> None:
        self._part, self._checks = part, checks
        self._asked = partial(asked_here, has_seed=has_seed)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._part, name)
        if name in CALLS:
            return partial(self._call, name)
        if name == "stream":
            return self._stream
        if name == "with_raw_response":
            return _Forms(attribute, {each: partial(self._call, each, is_raw=True) for each in CALLS})
        if name == "with_streaming_response":
            return _Forms(attribute, {each: partial(self._open, attribute, each) for each in CALLS})
        return attribute

    def _call(self, name: str, /, *, is_raw: bool = False, **arguments: Any) -> Any:
        call = self._asked(arguments)
        raw = getattr(self._part, "with_raw_response", None)
        answer = getattr(self._part if raw is None else raw, name)(**call.body)
        receive = self._returned if raw is None else partial(self._arrived, is_raw)
        if inspect.isawaitable(answer):
            return self._coming(answer, partial(receive, call))
        received, checked = receive(call, answer, False)
        self._checks.settle(checked, received)
        return received

    async def _coming(self, answer: Awaitable[Any], receive: Callable[[Any, bool], Received]) -> Any:
        received, checked = receive(await answer, True)
        await self._checks.settle_coming(checked, received)
        return received

    def _stream(self, **arguments: Any) -> Any:
        """The library's helper for streams; it asks by `create`, which is the one that is watched."""
        part = copy.copy(self._part)
        part.create = partial(self._call, "create")
        return part.stream(**arguments)

    def _open(self, forms: Any, name: str, /, **arguments: Any) -> Any:
        call = self._asked(arguments)
        manager = getattr(forms, name)(**call.body)
        opened = _AsyncOpened if hasattr(manager, "__aenter__") else _Opened
        return opened(manager, lambda response: watch_response(call, response, self._checks))

    def _returned(self, call: AskedCall, answer: Any, is_async: bool) -> Received:
        if not call.is_stream:
            return answer, self._checks.check(call, answer)
        self._checks.begin(call)
        return (AsyncWatchedStream if is_async else WatchedStream)(answer, call, self._checks), None

    def _arrived(self, is_raw: bool, call: AskedCall, raw: Any, is_async: bool) -> Received:
        """A response with its headers: what the call returns is itself, or what it is parsed to."""
        checked = None
        if call.is_stream:
            watch_response(call, raw.http_response, self._checks)
        else:
            sent = sent_for(call, raw.http_response)
            checked = self._checks.check(sent, partial(read_answer, sent, raw.http_response))
        return raw if is_raw else raw.parse(), checked


class _Forms:
    """An attribute of an endpoint with some methods in another form."""

    def __init__(self, part: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        self._part, self._methods = part, methods

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if name in self._methods else getattr(self._part, name)


class _Opened:
    """A response whose body its reader asks for, between `with` and its end."""

    def __init__(self, manager: Any, watch: Callable[[Any], None]) -> None:
        self._manager, self._watch = manager, watch

    def __enter__(self) -> Any:
        response = self._manager.__enter__()
        self._watch(response.http_response)
        return response

    def __exit__(self, *error: Any) -> Any:
        return self._manager.__exit__(*error)


class _AsyncOpened(_Opened):
    async def __aenter__(self) -> Any:
        response = await self._manager.__aenter__()
        self._watch(response.http_response)
        return response

    async def __aexit__(self, *error: Any) -> Any:
        return await self._manager.__aexit__(*error)

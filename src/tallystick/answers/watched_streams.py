"""Streams of the `openai` client, handed on chunk by chunk and joined for the check at their end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from tallystick.answers.unverified import Checked
from tallystick.answers.verification import json_of
from tallystick.errors import MalformedError
from tallystick.transcripts.completion_form import CompletionReader, Form
from tallystick.transcripts.responses_reader import ResponsesReader, reader_of

Check = Callable[[object], Future[Checked]]
Settle = Callable[[Future[Checked], object], object]


class StreamedAnswer:
    """What the chunks of a stream amount to, read in the form that the request asks for."""

    def __init__(self, form: Form) -> None:
        self.reader = reader_of(form)

    def add(self, chunk: Any, name: str = "") -> None:
        """Add one chunk, or one event with its name; raises `MalformedError` for what is none."""
        if not isinstance(chunk, Mapping):
            raise MalformedError("stream: a chunk that is no object")
        known = ("", str(chunk.get("type"))) if isinstance(self.reader, ResponsesReader) else ("", "message")
        if name not in known:
            raise MalformedError(f"stream: an event under the name {name[:60]!r}, which readers pass over or read")
        if isinstance(self.reader, ResponsesReader):
            self.reader.add_event(chunk)
        else:
            self.reader.add(chunk)


class WatchedAnswer:
    """The part that streams of both kinds share: what has arrived, and its one check."""

    def __init__(self, stream: Any, form: Form, check: Check, settle: Settle) -> None:
        self._stream, self._form, self._check, self._settle = stream, form, check, settle
        self._received: list[Any] = []
        self._checked: Future[Checked] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _finish(self) -> Future[Checked]:
        """Have what has arrived checked, once; an answer that was not read to its end cannot be checked."""
        if self._checked is None:
            self._checked = self._check(self._answer)
        return self._checked

    def _answer(self) -> CompletionReader:
        whole = StreamedAnswer(self._form)
        for chunk in self._received:
            whole.add(json_of(chunk))
        return whole.reader


class WatchedStream(WatchedAnswer):
    """Yields the chunks of a stream as they arrive; raises at its end what the verdict asks for."""

    def __init__(self, stream: Any, form: Form, check: Check, settle: Settle) -> None:
        super().__init__(stream, form, check, settle)
        self._chunks = self._watched()

    def __iter__(self) -> Iterator[Any]:
        return self._chunks

    def __next__(self) -> Any:
        return next(self._chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream."""
        closing = getattr(self._stream, "close", None)
        if closing is not None:
            closing()
        self._settle(self._finish(), self._received)

    def _watched(self) -> Iterator[Any]:
        try:
            for chunk in self._stream:
                self._received.append(chunk)
                yield chunk
        finally:
            found = self._finish()
        self._settle(found, self._received)


class AsyncWatchedStream(WatchedAnswer):
    """The same for a stream of the asynchronous client; `settle` gives what has to be awaited."""

    def __init__(self, stream: Any, form: Form, check: Check, settle: Settle) -> None:
        super().__init__(stream, form, check, settle)
        self._chunks = self._watched()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._chunks

    async def __anext__(self) -> Any:
        return await anext(self._chunks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the stream."""
        closing = getattr(self._stream, "close", None)
        if closing is not None:
            await closing()
        await self._settle(self._finish(), self._received)  # type: ignore[misc]

    async def _watched(self) -> AsyncIterator[Any]:
        try:
            async for chunk in self._stream:
                self._received.append(chunk)
                yield chunk
        finally:
            found = self._finish()
        await self._settle(found, self._received)  # type: ignore[misc]

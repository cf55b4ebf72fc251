"""Streams of the `openai` client, handed on chunk by chunk and joined for the check at their end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from tallystick.answers.unverified import Checked
from tallystick.answers.verification import json_of

Check = Callable[[object], Future[Checked]]
Settle = Callable[[Future[Checked], object], object]


class WholeAnswer:
    """The response that the chunks of a stream form together."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._response: Mapping[str, Any] | None = None

    def add(self, chunk: Any) -> None:
        """Add one chunk; of the events of the Responses API, the last one has the whole response."""
        if isinstance(chunk.get("response"), Mapping):
            self._response = chunk["response"]
        for name in ("id", "usage", "receipt", "receipts", "prompt_token_ids"):
            if chunk.get(name) is not None:
                self._fields[name] = chunk[name]
        for part in chunk.get("choices") or ():
            self._add_choice(part)

    @property
    def body(self) -> dict[str, Any]:
        """The response so far."""
        if self._response is not None:
            return dict(self._response)
        return {**self._fields, "choices": [self._choices[number] for number in sorted(self._choices)]}

    def _add_choice(self, part: Mapping[str, Any]) -> None:
        choice = self._choices.setdefault(int(part.get("index") or 0), {})
        text = part["text"] if "text" in part else (part.get("delta") or {}).get("content")
        choice["text"] = choice.get("text", "") + (text or "")
        if calls := (part.get("delta") or {}).get("tool_calls"):
            self._add_calls(choice, calls)
        if (part.get("logprobs") or {}).get("content"):
            choice.setdefault("logprobs", {"content": []})["content"] += part["logprobs"]["content"]
        if part.get("token_ids") is not None:
            choice["token_ids"] = [*choice.get("token_ids", ()), *part["token_ids"]]
        if part.get("finish_reason") is not None:
            choice["finish_reason"] = part["finish_reason"]

    def _add_calls(self, choice: dict[str, Any], calls: Iterable[Mapping[str, Any]]) -> None:
        """Join the pieces of each call: its name comes once, its arguments in parts."""
        held = choice.setdefault("message", {"tool_calls": []})["tool_calls"]
        for call in calls:
            number = int(call.get("index") or 0)
            held += [{"function": {"name": "", "arguments": ""}} for _ in range(number + 1 - len(held))]
            for name, value in (call.get("function") or {}).items():
                held[number]["function"][name] = held[number]["function"].get(name, "") + (value or "")


class WatchedAnswer:
    """The part that streams of both kinds share: what has arrived, and its one check."""

    def __init__(self, stream: Any, check: Check, settle: Settle) -> None:
        self._stream, self._check, self._settle = stream, check, settle
        self._whole = WholeAnswer()
        self._checked: Future[Checked] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _finish(self) -> Future[Checked]:
        """Have what has arrived checked, once; an answer that was not read to its end cannot be checked."""
        if self._checked is None:
            self._checked = self._check(self._whole.body)
        return self._checked


class WatchedStream(WatchedAnswer):
    """Yields the chunks of a stream as they arrive; raises at its end what the verdict asks for."""

    def __init__(self, stream: Any, check: Check, settle: Settle) -> None:
        super().__init__(stream, check, settle)
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
        self._settle(self._finish(), self._whole.body)

    def _watched(self) -> Iterator[Any]:
        try:
            for chunk in self._stream:
                self._whole.add(json_of(chunk))
                yield chunk
        finally:
            found = self._finish()
        self._settle(found, self._whole.body)


class AsyncWatchedStream(WatchedAnswer):
    """The same for a stream of the asynchronous client; `settle` gives what has to be awaited."""

    def __init__(self, stream: Any, check: Check, settle: Settle) -> None:
        super().__init__(stream, check, settle)
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
        await self._settle(self._finish(), self._whole.body)  # type: ignore[misc]

    async def _watched(self) -> AsyncIterator[Any]:
        try:
            async for chunk in self._stream:
                self._whole.add(json_of(chunk))
                yield chunk
        finally:
            found = self._finish()
        await self._settle(found, self._whole.body)  # type: ignore[misc]

"""The attributes of a client that lead to the calls whose answers are verified; all others are passed through."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final

from tallystick.answers.asked_calls import AskedCall, asked_here
from tallystick.answers.background import BackgroundChecks
from tallystick.answers.unverified import Checked
from tallystick.answers.watched_streams import AsyncWatchedStream, WatchedStream

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
        found = getattr(self._part, name)
        if name not in self._paths:
            return found
        paths = self._paths[name]
        if paths is ENDPOINT or paths is UNSEEDED:
            return WatchedEndpoint(found, self._checks, has_seed=paths is ENDPOINT)
        return WatchedPart(found, self._checks, paths)


class WatchedEndpoint:
    """Completions or responses of a client: the calls that ask for an answer, in every form that `openai` gives them.

    Where the client has `with_raw_response`, request and response are judged as they went over the wire; otherwise as
    the arguments of the call and the object that it returned.
    """

    def __init__(self, part: Any, checks: BackgroundChecks, has_seed: bool = True) -> None:
        self._part, self._checks = part, checks
        self._asked = partial(asked_here, has_seed=has_seed)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name in CALLS:
            return partial(self._call, name)
        if name == "stream":
            return self._stream
        if name == "with_raw_response":
            return _Forms(found, {each: partial(self._call, each, is_raw=True) for each in CALLS})
        if name == "with_streaming_response":
            return _Forms(found, {each: partial(self._open, found, each) for each in CALLS})
        return found

    def _call(self, name: str, /, *, is_raw: bool = False, **asked: Any) -> Any:
        call = self._asked(asked)
        raw = getattr(self._part, "with_raw_response", None)
        answer = getattr(self._part if raw is None else raw, name)(**call.body)
        receive = self._returned if raw is None else partial(self._arrived, is_raw)
        if inspect.isawaitable(answer):
            return self._coming(answer, partial(receive, call))
        found, told = receive(call, answer, False)
        self._checks.settle(told, found)
        return found

    async def _coming(self, answer: Awaitable[Any], receive: Callable[[Any, bool], Received]) -> Any:
        found, told = receive(await answer, True)
        await self._checks.settle_coming(told, found)
        return found

    def _stream(self, **asked: Any) -> Any:
        """The library's helper for streams; it asks by `create`, which is the one that is watched."""
        part = copy.copy(self._part)
        part.create = partial(self._call, "create")
        return part.stream(**asked)

    def _open(self, forms: Any, name: str, /, **asked: Any) -> Any:
        call = self._asked(asked)
        manager = getattr(forms, name)(**call.body)
        return (_AsyncOpened if hasattr(manager, "__aenter__") else _Opened)(manager, partial(self._watch, call))

    def _returned(self, call: AskedCall, answer: Any, is_async: bool) -> Received:
        check = partial(self._checks.check, call)
        if not call.is_stream:
            return answer, check(answer)
        self._checks.begin(call)
        if is_async:
            return AsyncWatchedStream(answer, call.form, check, self._checks.settle_coming), None
        return WatchedStream(answer, call.form, check, self._checks.settle), None

    def _arrived(self, is_raw: bool, call: AskedCall, raw: Any, is_async: bool) -> Received:
        """A response with its headers: what the call returns is itself, or what it is parsed to."""
        from tallystick.answers.watched_responses import body_sent_for, read_answer

        told = None
        if call.is_stream:
            self._watch(call, raw.http_response, is_async)
        else:
            sent = call.as_sent(body_sent_for(raw.http_response))
            told = self._checks.check(sent, partial(read_answer, sent, raw.http_response))
        return raw if is_raw else raw.parse(), told

    def _watch(self, call: AskedCall, response: Any, is_async: bool) -> None:
        from tallystick.answers.watched_responses import body_sent_for, watch_response

        sent = call.as_sent(body_sent_for(response))
        self._checks.begin(sent)
        settle = self._checks.settle_coming if is_async else self._checks.settle
        watch_response(response, sent, partial(self._checks.check, sent), settle)


class _Forms:
    """An attribute of an endpoint with some methods in another form."""

    def __init__(self, part: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        self._part, self._methods = part, methods

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if name in self._methods else getattr(self._part, name)


class _Opened:
    """A response whose body its reader asks for, between `with` and its end."""

    def __init__(self, manager: Any, watch: Callable[[Any, bool], None]) -> None:
        self._manager, self._watch = manager, watch

    def __enter__(self) -> Any:
        response = self._manager.__enter__()
        self._watch(response.http_response, False)
        return response

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return self._manager.__exit__(kind, error, trace)


class _AsyncOpened(_Opened):
    async def __aenter__(self) -> Any:
        response = await self._manager.__aenter__()
        self._watch(response.http_response, True)
        return response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return await self._manager.__aexit__(kind, error, trace)

"""An ASGI middleware for `vllm serve` (`--middleware`) that gives its answers receipts, and serves these."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tallystick.core.canonical_json import loose_json
from tallystick.core.errors import TallyError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import read_body
from tallystick.formats.completions import CompletionReader, ReadChoice, receipt_fields
from tallystick.formats.receipt import SignedReceipt
from tallystick.recording.serving.application import as_delta, receipt_headers, said_message
from tallystick.recording.serving.errors import DONE, error_object, error_response, event_of, invalid
from tallystick.recording.serving.vllm.asking import CHAT, TEXT, Asked, read_asked
from tallystick.recording.serving.vllm.provider import AnswerIssuer, VllmProvider, start_provider
from tallystick.recording.serving.vllm.start import ReceiptVariables

# Calls of functions in the answers of vLLM, which sends them as text: read as every verifier reads them again.


def with_calls(body: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """A whole response whose messages have their calls in place of the text that says them."""
    choices = []
    for choice in body["choices"]:
        text, name = choice["message"].get("content") or "", asked.choice_id(choice["index"])
        message, finish = said_message(text, asked.calls, name, choice.get("finish_reason"))
        if "tool_calls" in message:
            message = {**choice["message"], "content": None, **message}
            choice = {**choice, "message": message, "finish_reason": finish}
        choices.append(choice)
    return {**body, "choices": choices}


def held_back(chunk: Mapping[str, Any], asked: Asked, seen: Mapping[int, ReadChoice]) -> dict[str, Any]:
    """A chunk of a stream without its text; the last one of a choice has all of it, or the calls that it says."""
    choices = []
    for choice in chunk.get("choices") or ():
        delta, finish = {**(choice.get("delta") or {}), "content": ""}, choice.get("finish_reason")
        if finish is not None:
            number = choice["index"]
            message, finish = said_message(seen[number].text or "", asked.calls, asked.choice_id(number), finish)
            del delta["content"]
            delta |= as_delta(message or {"content": ""})
        choices.append({**choice, "delta": delta, "finish_reason": finish})
    return {**chunk, "choices": choices}


# Stands between vLLM and the client of one request: passes on what vLLM sends, and adds the receipts at the end.

LOG: Final = logging.getLogger("vllm.tallystick")
WHOLE: Final = "application/json"
EVENTS: Final = "text/event-stream"
END: Final = b"\n\n"
FAILURES: Final = (TallyError, OSError)


class _Witness:
    """Sends one response of vLLM on; responses with an error are not changed.

    A stream is passed on event by event. Once an answer has ended, an event waits for the next one: the last gets the
    receipts.
    """

    def __init__(self, asked: Asked, issuer: AnswerIssuer, send: Send) -> None:
        self._asked, self._issuer, self._send = asked, issuer, send
        self._seen = CompletionReader("chat" if asked.path == CHAT else "text")
        self._has_failed = False
        self._start: Message = {}
        self._kind = ""
        self._body = bytearray()
        self._waiting: tuple[bytes, Mapping[str, Any]] | None = None
        self._is_settled = False

    async def __call__(self, message: Message) -> None:
        """Take a message of vLLM's application."""
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] != "http.response.body" or self._kind not in (WHOLE, EVENTS):
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            is_last = not message.get("more_body", False)
            if self._kind == EVENTS:
                await self._pass_events(is_last)
            elif is_last:
                await self._send_whole()

    async def close(self) -> None:
        """End a request whose client has left: what was streamed gets receipts, and no rows are kept."""
        if self._is_settled or 400 <= self._start.get("status", 0) < 500:
            return
        self._is_settled = True
        try:
            if self._kind == EVENTS and not self._has_failed:
                arrived = {number: choice for number, choice in self._seen.choices.items() if choice.ids}
                await self._issuer.issue(self._asked, self._seen.prompt_ids, arrived)
        except FAILURES:
            LOG.exception("no receipt of %s, whose client has left", self._asked.id)
        await self._drop()

    async def _begin(self, message: Message) -> None:
        self._start, headers = message, MutableHeaders(raw=message["headers"])
        kind = headers.get("content-type", "").partition(";")[0]
        self._kind = kind if message["status"] == 200 else ""
        if self._kind == EVENTS:
            headers["X-Request-Id"] = self._asked.id
        if self._kind != WHOLE:
            await self._send(message)

    async def _send_whole(self) -> None:
        try:
            answer = loose_json(bytes(self._body))
        except ValueError:
            answer = None
        if isinstance(answer, dict) and "choices" in answer:
            self._seen.add(answer)
            issued = await self._settle()
            if isinstance(issued, Problem):
                self._start["status"], answer = issued.status, error_object(issued)
            else:
                MutableHeaders(raw=self._start["headers"]).update(receipt_headers(self._asked.id, issued))
                answer = answer if self._asked.calls is None else with_calls(answer, self._asked)
                answer |= self._closing(issued)
            self._body = bytearray(json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode())
            MutableHeaders(raw=self._start["headers"])["content-length"] = str(len(self._body))
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": bytes(self._body)})

    async def _pass_events(self, is_last: bool) -> None:
        *events, rest = bytes(self._body).split(END)
        self._body = bytearray(rest)
        for event in events:
            await self._pass_event(event + END)
        if is_last:
            await self._send({"type": "http.response.body", "body": rest})

    async def _pass_event(self, event: bytes) -> None:
        chunk = _chunk(event)
        if event.startswith(DONE.strip()):
            await self._end()
            await self._pass(event)
        elif chunk is None:
            await self._pass(event)
        else:
            self._has_failed |= "error" in chunk
            self._seen.add(chunk)
            if self._asked.calls is not None:
                chunk = held_back(chunk, self._asked, self._seen.choices)
                event = event_of(chunk)
            await self._pass_waiting()
            if self._seen.is_ending:
                self._waiting = event, chunk
            else:
                await self._pass(event)

    async def _end(self) -> None:
        """The last chunk, with the receipts; after an error of vLLM there are none."""
        if self._has_failed or self._waiting is None:
            await self._pass_waiting()
            return
        issued = await self._settle()
        if isinstance(issued, Problem):
            await self._pass_waiting()
            await self._pass(event_of(error_object(issued)))
        else:
            (_, last), self._waiting = self._waiting, None
            await self._pass(event_of({**last, **self._closing(issued)}))

    async def _settle(self) -> list[SignedReceipt] | Problem:
        """The receipts of a whole response, or the problem that there are none."""
        try:
            issued = await self._issuer.issue(self._asked, self._seen.prompt_ids, self._seen.choices)
        except FAILURES as error:
            LOG.exception("no receipt of %s", self._asked.id)
            await self._drop()
            return Problem(500, "internal_error", f"the receipt could not be issued: {error}")
        finally:
            self._is_settled = True
        return issued

    def _closing(self, issued: Sequence[SignedReceipt]) -> dict[str, Any]:
        """The fields that a response, or the last chunk of a stream, gets."""
        prompt = {"prompt_token_ids": self._seen.prompt_ids} if issued else {}
        return prompt | receipt_fields([signed.to_json() for signed in issued])

    async def _drop(self) -> None:
        try:
            await self._issuer.drop(self._asked)
        except FAILURES:
            LOG.exception("rows of %s are kept until newer ones need the space", self._asked.id)

    async def _pass_waiting(self) -> None:
        if self._waiting is not None:
            await self._pass(self._waiting[0])
            self._waiting = None

    async def _pass(self, event: bytes) -> None:
        await self._send({"type": "http.response.body", "body": event, "more_body": True})


def _chunk(event: bytes) -> dict[str, Any] | None:
    """The object in an event; None for comments, for the end of a stream, and for what is none."""
    if not event.startswith(b"data:"):
        return None
    try:
        value = loose_json(event[5:])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# An ASGI middleware for `vllm serve` (`--middleware`) that gives its answers receipts, and serves these.
#
# It starts when vLLM's application starts. A setting under which receipts cannot be true ends the start with one line.

BODY_BYTES_MAX: Final = 64 << 20
BODY_SECONDS_MAX: Final = 600.0
UNCOVERED: Final = (
    *("/v1/responses", "/v1/messages", "/v1/chat/completions/", "/v1/completions/", "/v1/realtime", "/v1/audio/"),
    *("/invocations", "/generate", "/inference/", "/v1/generate"),
)
"""How the paths begin under which vLLM generates answers that get no receipts."""
NOT_STARTED: Final = Problem(503, "unavailable", "the server starts, or could not start, to issue receipts")


class ReceiptMiddleware:
    """Gives receipts to the answers of `app`; its settings are `ReceiptVariables` in the environment.

    What else generates answers is refused: none goes out without a receipt. Requests to other paths pass unchanged.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._provider: VllmProvider | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as an ASGI application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._starting(scope["app"].state, send))
            return
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        is_asked = scope["type"] == "http" and scope["method"] == "POST" and path in (CHAT, TEXT)
        if scope["type"] == "http" and scope["method"] == "POST" and path.startswith(UNCOVERED):
            await error_response(no_receipt(path))(scope, receive, send)
        elif not is_asked and not is_own(path):
            await self._app(scope, receive, send)
        elif self._provider is None:
            await error_response(NOT_STARTED)(scope, receive, send)
        elif is_asked:
            await self._answer(self._provider, path, scope, receive, send)
        else:
            await self._provider.app(scope, receive, send)

    def _starting(self, state: Any, send: Send) -> Send:
        """`send` of the application's start and end, at which the provider starts and ends too."""

        async def sent(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    self._provider = await start_provider(state, ReceiptVariables.read(os.environ))
                except TallyError as error:
                    message = {"type": "lifespan.startup.failed", "message": f"tally: {error}"}
            elif message["type"].startswith("lifespan.shutdown") and self._provider is not None:
                self._provider.close()
            await send(message)

        return sent

    async def _answer(self, provider: VllmProvider, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if not provider.admits(request):
            await self._app(scope, receive, send)  # vLLM refuses it
            return
        try:
            body = await read_body(request, BODY_BYTES_MAX, BODY_SECONDS_MAX)
            asked = await asyncio.to_thread(read_asked, path, body, provider.defaults, provider.ends)
        except Problem as problem:
            await error_response(problem)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        if asked is None:
            await self._app(scope, _again(body, receive), send)
            return
        sent = asked.encoded
        witness = _Witness(asked, provider.issuer, send)
        try:
            await self._app(_with_headers(scope, asked.key, len(sent)), _again(sent, receive), witness)
        finally:
            await witness.close()


def no_receipt(path: str) -> Problem:
    """The answer to a request for an answer that would have no receipt."""
    return invalid(f"{path[:64]}: its answers get no receipt here; ask {CHAT} or {TEXT}", None, "no_receipt")


def is_own(path: str) -> bool:
    """Whether the middleware answers requests to this path itself."""
    return path == "/v1/key" or path == "/v1/receipts" or path.startswith("/v1/receipts/")


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` for a request whose body was read: it is given once more, then comes what comes."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return given.pop() if given else await receive()

    return received


def _with_headers(scope: Scope, key: str, length: int) -> Scope:
    """The scope with the id that vLLM is to use: ids that clients choose could be those of other requests."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    headers["x-request-id"], headers["content-length"] = key, str(length)
    return {**scope, "headers": headers.raw}

"""An ASGI middleware for `vllm serve` (`--middleware`) that gives its answers receipts, and serves these.

It starts when vLLM's application starts. A setting under which receipts cannot be true ends the start with one line.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tallystick.errors import TallyError
from tallystick.http.bodies import read_body
from tallystick.http.problems import Problem
from tallystick.serving.errors import error_response, invalid
from tallystick.serving.vllm.asking import CHAT, TEXT, read_asked
from tallystick.serving.vllm.provider import VllmProvider, start_provider
from tallystick.serving.vllm.settings import ReceiptVariables
from tallystick.serving.vllm.witness import Witness

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
        witness = Witness(asked, provider.issuer, send)
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

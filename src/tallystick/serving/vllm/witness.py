"""Stands between vLLM and the client of one request: passes on what vLLM sends, and adds the receipts at the end."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from tallystick.commitments.nesting import loose_json
from tallystick.errors import TallyError
from tallystick.http.problems import Problem
from tallystick.serving.application import receipt_headers
from tallystick.serving.errors import error_object
from tallystick.serving.events import DONE, event_of
from tallystick.serving.vllm.asking import CHAT, Asked
from tallystick.serving.vllm.called import held_back, with_calls
from tallystick.serving.vllm.issuing import AnswerIssuer
from tallystick.serving.vllm.seen import SeenAnswers
from tallystick.transcripts.receipt import SignedReceipt

LOG: Final = logging.getLogger("vllm.tallystick")
WHOLE: Final = "application/json"
EVENTS: Final = "text/event-stream"
END: Final = b"\n\n"
FAILURES: Final = (TallyError, OSError)


class Witness:
    """Sends one response of vLLM on; responses with an error are not changed.

    A stream is passed on event by event. Once an answer has ended, an event waits for the next one: the last gets the
    receipts.
    """

    def __init__(self, asked: Asked, issuer: AnswerIssuer, send: Send) -> None:
        self._asked, self._issuer, self._send = asked, issuer, send
        self._seen = SeenAnswers("chat" if asked.path == CHAT else "text")
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
            if self._kind == EVENTS and not self._seen.failed:
                await self._issuer.issue(self._asked, self._seen.prompt, self._seen.arrived)
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
            told = loose_json(bytes(self._body))
        except ValueError:
            told = None
        if isinstance(told, dict) and "choices" in told:
            self._seen.add(told)
            issued = await self._settle()
            if isinstance(issued, Problem):
                self._start["status"], told = issued.status, error_object(issued)
            else:
                MutableHeaders(raw=self._start["headers"]).update(receipt_headers(self._asked.id, issued))
                told = told if self._asked.calls is None else with_calls(told, self._asked)
                told |= closing(self._seen, issued)
            self._body = bytearray(json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode())
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
        told = _chunk(event)
        if event.startswith(DONE.strip()):
            await self._end()
            await self._pass(event)
        elif told is None:
            await self._pass(event)
        else:
            self._seen.add(told)
            if self._asked.calls is not None:
                told = held_back(told, self._asked, self._seen.answers)
                event = event_of(told)
            await self._pass_waiting()
            if self._seen.is_ending:
                self._waiting = event, told
            else:
                await self._pass(event)

    async def _end(self) -> None:
        """The last chunk, with the receipts; after an error of vLLM there are none."""
        if self._seen.failed or self._waiting is None:
            await self._pass_waiting()
            return
        issued = await self._settle()
        if isinstance(issued, Problem):
            await self._pass_waiting()
            await self._pass(event_of(error_object(issued)))
        else:
            (_, told), self._waiting = self._waiting, None
            await self._pass(event_of({**told, **closing(self._seen, issued)}))

    async def _settle(self) -> list[SignedReceipt] | Problem:
        """The receipts of a whole response, or the problem that there are none."""
        try:
            issued = await self._issuer.issue(self._asked, self._seen.prompt, self._seen.answers)
        except FAILURES as error:
            LOG.exception("no receipt of %s", self._asked.id)
            await self._drop()
            return Problem(500, "internal_error", f"the receipt could not be issued: {error}")
        finally:
            self._is_settled = True
        return issued

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


def closing(seen: SeenAnswers, issued: Sequence[SignedReceipt]) -> dict[str, Any]:
    """The fields that a response, or the last chunk of a stream, gets."""
    receipts = [each.to_json() for each in issued]
    fields: dict[str, Any] = {"prompt_token_ids": seen.prompt, "receipt": receipts[0]} if receipts else {}
    return fields | ({"receipts": receipts} if len(receipts) > 1 else {})


def _chunk(event: bytes) -> dict[str, Any] | None:
    """The object in an event; None for comments, for the end of a stream, and for what is none."""
    if not event.startswith(b"data:"):
        return None
    try:
        value = loose_json(event[5:])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

"""Answers in the forms of OpenAI's API, whole or as events, with the receipts and the token ids that they bind."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal

from tallystick.core.http.problems import Problem
from tallystick.formats.completions import FINISH_REASONS, receipt_fields
from tallystick.formats.receipt import SignedReceipt
from tallystick.recording.serving.application import as_delta, said_message
from tallystick.recording.serving.errors import DONE, error_object, event_of
from tallystick.recording.serving.jobs import NO_PIECE, Failed, Piece, TokenLogprobs
from tallystick.recording.serving.service import Answering, GenerationRequest

LEAST: Final = -9999.0
"""What the API writes for a token without probability: JSON has no infinity."""
Object = dict[str, Any]


@dataclass
class ChoiceSoFar:
    """One answer as far as it has been generated."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    signed: SignedReceipt | None = None

    @property
    def finish(self) -> str:
        """Why the finished answer ended, as its receipt says."""
        assert self.signed is not None
        return self.signed.receipt.answer.finish

    def add(self, event: Piece | SignedReceipt) -> None:
        """Append a piece, or note the end."""
        if isinstance(event, Piece):
            self.text += event.text
            self.ids += event.ids
            self.logprobs += event.logprobs
        else:
            self.signed = event


# Chat and text completions.


@dataclass(frozen=True)
class CompletionForm:
    """Writes chat and text completions as JSON objects; `root` is the model root, `shown` gives a token as text.

    With `has_usage`, the client asked for the token counts in a stream.
    """

    kind: Literal["chat", "text"]
    model: str
    root: str
    created: int
    order: GenerationRequest
    shown: Callable[[int], str]
    has_usage: bool

    def whole(self, choices: Sequence[ChoiceSoFar]) -> Object:
        """A response without streaming."""
        body = self._frame(is_chunk=False)
        body["choices"] = [self._choice(number, choice) for number, choice in enumerate(choices)]
        body["prompt_token_ids"] = list(self.order.prompt)
        return body | {"usage": self._usage(choices)} | _receipt_fields(choices)

    async def events(self, answering: Answering) -> AsyncGenerator[bytes, None]:
        """The chunks of an answer as they are generated, one event for each, then `[DONE]`.

        The last chunk carries the receipts. If the client asked for usage, that is the chunk with `usage` and no
        choices. Otherwise it is the chunk with the last `finish_reason`: other clients do not expect a chunk without
        choices.
        """
        choices = [ChoiceSoFar() for _ in answering.order.samplers]
        no_usage = {"usage": None} if self.has_usage else {}
        for number in range(len(choices)):
            content: Object = {"text": ""}
            if self.kind == "chat":
                content = {"delta": {"role": "assistant", "content": ""}}
            first = self._chunk(number, content, None, NO_PIECE)
            yield event_of(first | {"prompt_token_ids": list(self.order.prompt)} | no_usage)
        # pieces without text wait for the next one; where the answer may call functions, all wait for its end
        waiting: dict[int, Piece] = {}
        async for number, event in answering.events():
            if isinstance(event, Failed):
                yield event_of(error_object(Problem(500, "internal_error", event.reason)))
                yield DONE
                return
            choice = choices[number]
            choice.add(event)
            piece = waiting.pop(number, NO_PIECE)
            if isinstance(event, Piece):
                piece = piece.followed_by(event)
                if piece.text and self.order.calls is None:
                    content = {"delta": {"content": piece.text}} if self.kind == "chat" else {"text": piece.text}
                    yield event_of(self._chunk(number, content, None, piece) | no_usage)
                else:
                    waiting[number] = piece
                continue
            finish = FINISH_REASONS[choice.finish]
            content = {"text": piece.text}
            if self.order.calls is not None:
                message, finish = self._message(number, choice)
                content = {"delta": as_delta(message)}
                piece = Piece(piece.ids, "", tuple(choice.logprobs))
            elif self.kind == "chat":
                content = {"delta": {"content": piece.text} if piece.text else {}}
            is_last = not self.has_usage and all(one.signed for one in choices)
            last_fields = _receipt_fields(choices) if is_last else no_usage
            yield event_of(self._chunk(number, content, finish, piece) | last_fields)
        if self.has_usage:
            usage = {"choices": [], "usage": self._usage(choices)}
            yield event_of(self._frame(is_chunk=True) | usage | _receipt_fields(choices))
        yield DONE

    def _message(self, number: int, choice: ChoiceSoFar) -> tuple[Object, str]:
        """The text and the calls of a finished answer, and its finish reason."""
        name, finish = self.order.choice_id(number), FINISH_REASONS[choice.finish]
        return said_message(choice.text, self.order.calls, name, finish)

    def _choice(self, number: int, choice: ChoiceSoFar) -> Object:
        content: Object = {"text": choice.text}
        message, finish = self._message(number, choice)
        if self.kind == "chat":
            text = message.pop("content", None if message else "")
            content = {"message": {"role": "assistant", "content": text, "refusal": None, **message}}
        ends = {"logprobs": self._logprobs(choice.logprobs), "finish_reason": finish, "token_ids": choice.ids}
        return {"index": number, **content, **ends}

    def _chunk(self, number: int, content: Object, finish: str | None, piece: Piece) -> Object:
        ends = {"logprobs": self._logprobs(piece.logprobs), "finish_reason": finish, "token_ids": list(piece.ids)}
        return self._frame(is_chunk=True) | {"choices": [{"index": number, **content, **ends}]}

    def _logprobs(self, listed: Sequence[TokenLogprobs]) -> Object | None:
        """The field `logprobs` of a choice; None if nothing was asked for."""
        if self.order.logprobs is None or not listed:
            return None
        if self.kind == "chat":
            content = [
                self._token(one.token, one.logprob) | {"top_logprobs": [self._token(*pair) for pair in one.top]}
                for one in listed
            ]
            return {"content": content, "refusal": None}
        tokens = [self.shown(one.token) for one in listed]
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in listed],
            "top_logprobs": [{self.shown(token): value for token, value in one.top} for one in listed],
            "text_offset": [sum(map(len, tokens[:place])) for place in range(len(tokens))],
        }

    def _token(self, token: int, logprob: float) -> Object:
        text = self.shown(token)
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(text.encode())}

    def _frame(self, *, is_chunk: bool) -> Object:
        kind = "text_completion" if self.kind == "text" else "chat.completion" + ".chunk" * is_chunk
        return {
            "id": self.order.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.root,
        }

    def _usage(self, choices: Sequence[ChoiceSoFar]) -> Object:
        """The token counts; the prompt counts once for all choices."""
        prompt, answer = len(self.order.prompt), sum(len(choice.ids) for choice in choices)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def receipts_of(choices: Sequence[ChoiceSoFar]) -> list[SignedReceipt]:
    """The receipts of the finished choices, in order."""
    return [choice.signed for choice in choices if choice.signed is not None]


def _receipt_fields(choices: Sequence[ChoiceSoFar]) -> Object:
    return receipt_fields([signed.to_json() for signed in receipts_of(choices)])


# Responses: one message of text.

FIXED: Final[Object] = {
    "error": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
}


@dataclass(frozen=True)
class ResponsesForm:
    """Writes one answer of the Responses API; `request` is the request as it was sent, `root` the model root."""

    model: str
    root: str
    created: int
    order: GenerationRequest
    request: Mapping[str, Any]

    def whole(self, choices: Sequence[ChoiceSoFar]) -> Object:
        """The finished response."""
        choice, prompt = choices[0], len(self.order.prompt)
        is_cut = choice.finish == "length"
        body = self._frame("incomplete" if is_cut else "completed", [self._item("completed", [_part(choice.text)])])
        body["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        body["usage"] = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": len(choice.ids),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + len(choice.ids),
        }
        ids = {"prompt_token_ids": list(self.order.prompt), "token_ids": choice.ids}
        return body | ids | _receipt_fields(choices[:1])

    async def events(self, answering: Answering) -> AsyncGenerator[bytes, None]:
        """The events of a stream; the last one has the finished response."""
        choice, number = ChoiceSoFar(), count()
        item, place = {"output_index": 0}, {"output_index": 0, "item_id": f"msg_{self.order.id}", "content_index": 0}

        def event_bytes(kind: str, fields: Object) -> bytes:
            event = {"type": kind, "sequence_number": next(number), **fields}
            return f"event: {kind}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()

        for kind in ("response.created", "response.in_progress"):
            yield event_bytes(kind, {"response": self._frame("in_progress", [])})
        yield event_bytes("response.output_item.added", item | {"item": self._item("in_progress", [])})
        yield event_bytes("response.content_part.added", place | {"part": _part("")})
        async for _, event in answering.events():
            if isinstance(event, Failed):
                problem: Any = error_object(Problem(500, "internal_error", event.reason))
                yield event_bytes("error", problem["error"])
                return
            choice.add(event)
            if isinstance(event, Piece) and event.text:
                yield event_bytes("response.output_text.delta", place | {"delta": event.text, "logprobs": []})
        whole, part = self.whole([choice]), _part(choice.text)
        yield event_bytes("response.output_text.done", place | {"text": choice.text, "logprobs": []})
        yield event_bytes("response.content_part.done", place | {"part": part})
        yield event_bytes("response.output_item.done", item | {"item": self._item("completed", [part])})
        yield event_bytes(f"response.{whole['status']}", {"response": whole})

    def _item(self, status: str, content: list[Object]) -> Object:
        place = {"type": "message", "id": f"msg_{self.order.id}", "status": status}
        return place | {"role": "assistant", "content": content}

    def _frame(self, status: str, output: list[Object]) -> Object:
        sampler = self.order.samplers[0]
        return FIXED | {
            "id": self.order.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "incomplete_details": None,
            "instructions": self.request.get("instructions"),
            "max_output_tokens": self.request.get("max_output_tokens"),
            "metadata": self.request.get("metadata") or {},
            "model": self.model,
            "output": output,
            "system_fingerprint": self.root,
            "temperature": sampler.temperature,
            "text": self.request.get("text") or {"format": {"type": "text"}},
            "top_p": sampler.top_p,
            "usage": None,
        }


def _part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

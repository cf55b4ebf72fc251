"""Answers in the forms of the OpenAI API, with the receipt and the token ids that it binds."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tallystick.core.http.problems import Problem
from tallystick.formats.completions import Call, calls_in
from tallystick.formats.receipt import SignedReceipt
from tallystick.recording.serving.errors import error_object
from tallystick.recording.serving.jobs import Failed, Piece, TokenLogprobs
from tallystick.recording.serving.service import Answering, FinishedAnswer, GenerationRequest

# Answers in the form of the OpenAI API, with the receipt and the token ids that it binds.

FINISH: Final = {"end": "stop", "stop": "stop", "length": "length", "cancelled": "stop"}
LEAST: Final = -9999.0
"""What the API writes for a token without probability: JSON has no infinity."""
CALLED: Final = "tool_calls"
Object = dict[str, Any]


@dataclass
class ChoiceSoFar:
    """One answer as far as it has been generated."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    answered: FinishedAnswer | None = None

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self.text += piece.text
        self.ids += piece.ids
        self.logprobs += piece.logprobs


@dataclass(frozen=True)
class ResponseForm:
    """Writes chat and text completions as JSON objects; `root` is the model root, `shown` gives a token as text."""

    kind: Literal["chat", "text"]
    model: str
    root: str
    created: int
    order: GenerationRequest
    shown: Callable[[int], str]

    def whole(self, choices: Sequence[ChoiceSoFar]) -> Object:
        """A response without streaming."""
        body = self._frame(is_chunk=False)
        body["choices"] = [self._choice(number, choice) for number, choice in enumerate(choices)]
        body["prompt_token_ids"] = list(self.order.prompt)
        return body | self.closing(choices)

    def closing(self, choices: Sequence[ChoiceSoFar], *, usage: bool = True) -> Object:
        """Usage and receipts: the last fields of a response, or of the last chunk of a stream."""
        receipts = [each.to_json() for each in receipts_of(choices)]
        body: Object = {"usage": usage_of(self.order, choices)} if usage else {}
        if receipts:
            body["receipt"] = receipts[0]
        return body | ({"receipts": receipts} if len(choices) > 1 else {})

    def first_chunk(self, number: int) -> Object:
        """The first chunk of a choice, with the prompt's token ids."""
        content = {"delta": {"role": "assistant", "content": ""}} if self.kind == "chat" else {"text": ""}
        return self._chunk(number, content, None, []) | {"prompt_token_ids": list(self.order.prompt)}

    def piece_chunk(
        self,
        number: int,
        text: str,
        ids: Sequence[int],
        finish: str | None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> Object:
        """A chunk with the next piece of a choice."""
        content: Object = {"text": text}
        if self.kind == "chat":
            content = {"delta": {"content": text} if text or finish is None else {}}
        return self._chunk(number, content, finish and FINISH[finish], ids, logprobs)

    def last_chunk(self) -> Object:
        """A chunk without choices; the caller adds usage and receipts."""
        return self._frame(is_chunk=True) | {"choices": []}

    def _logprobs(self, found: Sequence[TokenLogprobs]) -> Object | None:
        """The field `logprobs` of a choice; None if nothing was asked for."""
        if self.order.logprobs is None or not found:
            return None
        if self.kind == "chat":
            listed = [
                self._token(each.token, each.logprob) | {"top_logprobs": [self._token(*pair) for pair in each.top]}
                for each in found
            ]
            return {"content": listed, "refusal": None}
        tokens = [self.shown(each.token) for each in found]
        return {
            "tokens": tokens,
            "token_logprobs": [each.logprob for each in found],
            "top_logprobs": [{self.shown(token): value for token, value in each.top} for each in found],
            "text_offset": [sum(map(len, tokens[:place])) for place in range(len(tokens))],
        }

    def _token(self, token: int, logprob: float) -> Object:
        text = self.shown(token)
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(text.encode())}

    def _chunk(
        self,
        number: int,
        content: Object,
        finish: str | None,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> Object:
        found = self._logprobs(logprobs)
        choice = {"index": number, **content, "logprobs": found, "finish_reason": finish, "token_ids": list(ids)}
        return self._frame(is_chunk=True) | {"choices": [choice]}

    def calls_chunk(self, number: int, choice: ChoiceSoFar, ids: Sequence[int], finish: str) -> Object:
        """The last chunk of a choice that was held back because it may call functions."""
        text, calls = calls_in(choice.text, self.order.calls)
        delta: Object = {"content": text} if text else {}
        if calls:
            told = called_functions(self.order.choice_id(number), calls)
            delta["tool_calls"] = [{"index": place, **each} for place, each in enumerate(told)]
        ended = CALLED if calls and FINISH[finish] == "stop" else FINISH[finish]
        return self._chunk(number, {"delta": delta}, ended, ids, choice.logprobs)

    def _choice(self, number: int, choice: ChoiceSoFar) -> Object:
        assert choice.answered is not None
        text, calls = calls_in(choice.text, self.order.calls)
        message: Object = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": called_functions(self.order.choice_id(number), calls)}
        content: Object = {"message": message} if self.kind == "chat" else {"text": choice.text}
        finish = FINISH[choice.answered.finish]
        finish = CALLED if calls and finish == "stop" else finish
        found = self._logprobs(choice.logprobs)
        return {"index": number, **content, "logprobs": found, "finish_reason": finish, "token_ids": choice.ids}

    def _frame(self, *, is_chunk: bool) -> Object:
        kind = "text_completion" if self.kind == "text" else "chat.completion" + ".chunk" * is_chunk
        return {
            "id": self.order.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.root,
        }


def called_functions(choice: str, calls: Sequence[Call]) -> list[Object]:
    """The calls in a choice of that id, as a message has them."""
    return [
        {"id": f"call_{choice}_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]


def usage_of(order: GenerationRequest, choices: Sequence[ChoiceSoFar]) -> Object:
    """The `usage` object; the prompt counts once for all choices."""
    answer = sum(len(choice.ids) for choice in choices)
    return {
        "prompt_tokens": len(order.prompt),
        "completion_tokens": answer,
        "total_tokens": len(order.prompt) + answer,
    }


def receipts_of(choices: Sequence[ChoiceSoFar]) -> list[SignedReceipt]:
    """The receipts of the finished choices, in order."""
    return [choice.answered.signed for choice in choices if choice.answered is not None]


# Answers in the form of OpenAI's Responses API, whole or as events, with the receipt and the token ids.

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
class ResponseObjects:
    """Writes one answer; `asked` is the request as it was sent, `root` the model root."""

    model: str
    root: str
    created: int
    order: GenerationRequest
    asked: Mapping[str, Any]

    def whole(self, choices: Sequence[ChoiceSoFar]) -> Object:
        """The finished response."""
        choice = choices[0]
        assert choice.answered is not None
        is_cut = choice.answered.finish == "length"
        body = self._frame("incomplete" if is_cut else "completed", [self._item(choice.text, "completed")])
        counts = len(self.order.prompt), len(choice.ids)
        body["incomplete_details"] = {"reason": "max_output_tokens"} if is_cut else None
        body["usage"] = {
            "input_tokens": counts[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counts[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(counts),
        }
        ids = {"prompt_token_ids": list(self.order.prompt), "token_ids": choice.ids}
        return body | ids | {"receipt": receipts_of(choices)[0].to_json()}

    async def events(self, answering: Answering) -> AsyncGenerator[bytes, None]:
        """The events of a stream; the last one has the finished response."""
        choice, number = ChoiceSoFar(), 0
        place: Object = {"output_index": 0, "item_id": self._item_id, "content_index": 0}
        for kind, fields in self._opening(place):
            yield _event(kind, number, fields)
            number += 1
        async for _, event in answering.events():
            if isinstance(event, Failed):
                problem: Any = error_object(Problem(500, "internal_error", event.reason))
                yield _event("error", number, {**problem["error"]})
                return
            if not isinstance(event, Piece):
                choice.answered = event
                continue
            choice.add(event)
            if event.text:
                yield _event("response.output_text.delta", number, {**place, "delta": event.text, "logprobs": []})
                number += 1
        for kind, fields in self._closing(place, choice):
            yield _event(kind, number, fields)
            number += 1

    def _opening(self, place: Object) -> list[tuple[str, Object]]:
        begun = {"response": self._frame("in_progress", [])}
        item = {"output_index": 0, "item": {**self._item("", "in_progress"), "content": []}}
        return [
            ("response.created", begun),
            ("response.in_progress", begun),
            ("response.output_item.added", item),
            ("response.content_part.added", {**place, "part": _part("")}),
        ]

    def _closing(self, place: Object, choice: ChoiceSoFar) -> list[tuple[str, Object]]:
        whole = self.whole([choice])
        return [
            ("response.output_text.done", {**place, "text": choice.text, "logprobs": []}),
            ("response.content_part.done", {**place, "part": _part(choice.text)}),
            ("response.output_item.done", {"output_index": 0, "item": self._item(choice.text, "completed")}),
            (f"response.{whole['status']}", {"response": whole}),
        ]

    @property
    def _item_id(self) -> str:
        return f"msg_{self.order.id}"

    def _item(self, text: str, status: str) -> Object:
        content = [_part(text)]
        return {"type": "message", "id": self._item_id, "status": status, "role": "assistant", "content": content}

    def _frame(self, status: str, output: list[Object]) -> Object:
        sampler = self.order.samplers[0]
        return FIXED | {
            "id": self.order.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "incomplete_details": None,
            "instructions": self.asked.get("instructions"),
            "max_output_tokens": self.asked.get("max_output_tokens"),
            "metadata": self.asked.get("metadata") or {},
            "model": self.model,
            "output": output,
            "system_fingerprint": self.root,
            "temperature": sampler.temperature,
            "text": self.asked.get("text") or {"format": {"type": "text"}},
            "top_p": sampler.top_p,
            "usage": None,
        }


def _part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _event(kind: str, number: int, fields: Mapping[str, Any]) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": number, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()

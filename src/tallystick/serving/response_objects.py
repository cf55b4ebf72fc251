"""Answers in the form of OpenAI's Responses API, whole or as events, with the receipt and the token ids."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tallystick.http.problems import Problem
from tallystick.serving.errors import error_object
from tallystick.serving.jobs import Failed, Piece
from tallystick.serving.responses import ChoiceSoFar, Object, receipts_of
from tallystick.serving.service import Answering, GenerationRequest

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

"""Answers in the form of the OpenAI API, with the receipt and the token ids that it binds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tallystick.serving.jobs import Piece
from tallystick.serving.service import FinishedAnswer, GenerationRequest
from tallystick.transcripts.receipt import SignedReceipt

FINISH: Final = {"end": "stop", "stop": "stop", "length": "length", "cancelled": "stop"}
Object = dict[str, Any]


@dataclass
class ChoiceSoFar:
    """One answer as far as it has been generated."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    answered: FinishedAnswer | None = None

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self.text += piece.text
        self.ids += piece.ids


@dataclass(frozen=True)
class ResponseForm:
    """Writes chat and text completions as JSON objects; `root` is the model root."""

    kind: Literal["chat", "text"]
    model: str
    root: str
    created: int
    order: GenerationRequest

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

    def piece_chunk(self, number: int, text: str, ids: Sequence[int], finish: str | None) -> Object:
        """A chunk with the next piece of a choice."""
        content: Object = {"text": text}
        if self.kind == "chat":
            content = {"delta": {"content": text} if text or finish is None else {}}
        return self._chunk(number, content, finish and FINISH[finish], ids)

    def last_chunk(self) -> Object:
        """A chunk without choices; the caller adds usage and receipts."""
        return self._frame(is_chunk=True) | {"choices": []}

    def _chunk(self, number: int, content: Object, finish: str | None, ids: Sequence[int]) -> Object:
        choice = {"index": number, **content, "logprobs": None, "finish_reason": finish, "token_ids": list(ids)}
        return self._frame(is_chunk=True) | {"choices": [choice]}

    def _choice(self, number: int, choice: ChoiceSoFar) -> Object:
        assert choice.answered is not None
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        content: Object = {"message": message} if self.kind == "chat" else {"text": choice.text}
        finish = FINISH[choice.answered.finish]
        return {"index": number, **content, "logprobs": None, "finish_reason": finish, "token_ids": choice.ids}

    def _frame(self, *, is_chunk: bool) -> Object:
        kind = "text_completion" if self.kind == "text" else "chat.completion" + ".chunk" * is_chunk
        return {
            "id": self.order.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.root,
        }


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

"""Requests of OpenAI's Responses API as those of chat completions: both sides read them the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tallystick.errors import MalformedError

OUT: Final = ("input", "instructions", "max_output_tokens", "text", "store", "truncation", "previous_response_id")
TEXTS: Final = ("input_text", "output_text", "text")


def is_responses_request(body: Mapping[str, Any]) -> bool:
    """Whether a request is one of the Responses API."""
    return "input" in body and "messages" not in body and "prompt" not in body


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request as one for a chat completion; raises `MalformedError` for what no chat completion asks."""
    if body.get("previous_response_id") is not None:
        raise MalformedError("previous_response_id: no answers are kept; send the whole conversation as input")
    left = {name: value for name, value in body.items() if name not in OUT}
    left["messages"] = [*_instructions(body.get("instructions")), *_messages(body["input"])]
    if body.get("max_output_tokens") is not None:
        left["max_completion_tokens"] = body["max_output_tokens"]
    wanted = (body.get("text") or {}).get("format")
    return left if wanted is None else {**left, "response_format": _response_format(wanted)}


def _instructions(text: Any) -> list[dict[str, Any]]:
    return [] if text is None else [{"role": "system", "content": text}]


def _messages(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise MalformedError("input: a text or a list of messages is needed")
    return [_message(each) for each in given]


def _message(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping) or item.get("type", "message") != "message" or "role" not in item:
        raise MalformedError("input: only messages are offered")
    return {"role": item["role"], "content": _text(item.get("content"))}


def _text(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    shown = [each for each in parts if isinstance(each, Mapping) and each.get("type") in TEXTS]
    texts = [each["text"] for each in shown if isinstance(each.get("text"), str)]
    if len(texts) < len(parts):
        raise MalformedError("input: only text is offered")
    return "".join(texts)


def _response_format(wanted: Any) -> Any:
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        return wanted
    return {"type": "json_schema", "json_schema": {name: each for name, each in wanted.items() if name != "type"}}

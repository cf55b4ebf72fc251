"""Calls of functions in the answers of vLLM, which sends them as text: read as every verifier reads them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.serving.responses import CALLED, called_functions
from tallystick.serving.vllm.asking import Asked
from tallystick.transcripts.completion_form import ReadChoice
from tallystick.transcripts.tool_calls import calls_in


def with_calls(body: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """A whole response whose messages have their calls in place of the text that says them."""
    return {**body, "choices": [_with_calls(each, asked) for each in body["choices"]]}


def held_back(chunk: Mapping[str, Any], asked: Asked, seen: Mapping[int, ReadChoice]) -> dict[str, Any]:
    """A chunk of a stream without its text; the last one of a choice has all of it, or the calls that it says."""
    return {**chunk, "choices": [_held_back(each, asked, seen) for each in chunk.get("choices") or ()]}


def _with_calls(choice: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    message: Mapping[str, Any] = choice["message"]
    text, calls = calls_in(message.get("content") or "", asked.calls)
    if not calls:
        return dict(choice)
    told = called_functions(asked.choice_id(choice["index"]), calls)
    return {
        **choice,
        "message": {**message, "content": text or None, "tool_calls": told},
        "finish_reason": _ended(choice),
    }


def _held_back(choice: Mapping[str, Any], asked: Asked, seen: Mapping[int, ReadChoice]) -> dict[str, Any]:
    delta = {name: each for name, each in (choice.get("delta") or {}).items() if name != "content"}
    if choice.get("finish_reason") is None:
        return {**choice, "delta": {**delta, "content": ""}}
    text, calls = calls_in(seen[choice["index"]].text or "", asked.calls)
    told = called_functions(asked.choice_id(choice["index"]), calls)
    delta |= {"content": text} if text or not calls else {}
    delta |= {"tool_calls": [{"index": place, **each} for place, each in enumerate(told)]} if calls else {}
    return {**choice, "delta": delta, "finish_reason": _ended(choice) if calls else choice["finish_reason"]}


def _ended(choice: Mapping[str, Any]) -> Any:
    return CALLED if choice.get("finish_reason") == "stop" else choice.get("finish_reason")

"""The calls of functions in the text of an answer: what a server delivers as `tool_calls`, read again by verifiers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tallystick.commitments.nesting import loose_json
from tallystick.transcripts.requested import shown_tools

Call: TypeAlias = tuple[str, str]
"""The name of a function, and its arguments as JSON text."""
BLOCK: Final = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


def call_form(body: Mapping[str, Any]) -> str | None:
    """How an answer to the request may call: `auto` in blocks of text, `required` as a list, or `:` and one function.

    None if the answer calls nothing.
    """
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        return f":{choice['function']['name']}"
    if shown_tools(body) is None:
        return None
    return "required" if choice == "required" else "auto"


def calls_in(text: str, form: str | None) -> tuple[str, tuple[Call, ...]]:
    """The text beside calls, and the calls, in order; a call that is not whole stays text.

    Blocks are `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as in the templates of Hermes and Qwen.
    """
    if form is None:
        return text, ()
    if form.startswith(":"):
        return "", ((form[1:], text),)
    if form == "required":
        listed = _read(text)
        calls = [_call(each, "parameters") for each in listed] if isinstance(listed, list) else [None]
        return ("", tuple(each for each in calls if each)) if all(calls) else (text, ())
    found = [_call(_read(block), "arguments") for block in BLOCK.findall(text)]
    if not found or not all(found):
        return text, ()
    return BLOCK.sub("", text).strip(), tuple(each for each in found if each)


def _read(text: str) -> Any:
    try:
        return loose_json(text)
    except ValueError:
        return None


def _call(value: Any, arguments: str) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    return value["name"], json.dumps(value.get(arguments, {}), ensure_ascii=False)

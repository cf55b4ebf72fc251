"""Calls are read from text as they were written, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from tallystick.formats.completions import call_form, calls_in

TOOLS = [{"type": "function", "function": {"name": "cut"}}]
CUT = '<tool_call>\n{"name": "cut", "arguments": {"at": 3}}\n</tool_call>'


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({}, None),
        ({"tools": TOOLS}, "auto"),
        ({"tools": TOOLS, "tool_choice": "none"}, None),
        ({"tools": TOOLS, "tool_choice": "required"}, "required"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "cut"}}}, ":cut"),
    ],
)
def test_the_form_follows_from_the_request(body: dict[str, object], form: str | None) -> None:
    assert call_form(body) == form


def test_blocks_in_text_are_calls() -> None:
    assert calls_in(f"First: {CUT}", "auto") == ("First:", (("cut", '{"at": 3}'),))
    assert calls_in(CUT + CUT, "auto")[1] == (("cut", '{"at": 3}'),) * 2
    assert calls_in(CUT, None) == (CUT, ())


@pytest.mark.parametrize("text", ["no call", CUT[:-5], "<tool_call>{}</tool_call>", CUT + "<tool_call>x</tool_call>"])
def test_what_is_not_whole_stays_text(text: str) -> None:
    assert calls_in(text, "auto") == (text, ())


def test_a_list_of_calls_and_the_arguments_of_one() -> None:
    listed = '[{"name": "cut", "parameters": {"at": 3}}, {"name": "wait", "parameters": {}}]'
    assert calls_in(listed, "required") == ("", (("cut", '{"at": 3}'), ("wait", "{}")))
    assert calls_in(listed[:-2], "required") == (listed[:-2], ())
    assert calls_in('{"at": 3}', ":cut") == ("", (("cut", '{"at": 3}'),))

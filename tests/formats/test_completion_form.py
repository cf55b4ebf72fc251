"""One reader of completions, whole or in chunks: what servers write is read without a remark that counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import MalformedError
from tallystick.formats.completions import CompletionReader
from tallystick.formats.requests import form_of_request
from tallystick.formats.responses_api import ResponsesReader, events_of, form_of_answer

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "recording" / "serving" / "vllm" / "recorded.json").read_text()
)
ANSWERED = [name for name, case in RECORDED.items() if case["status"] == 200]


def read(name: str) -> CompletionReader:
    case = RECORDED[name]
    reader, text = CompletionReader(form_of_request(case["request"])), "".join(case["parts"])
    is_stream = case["kind"] == "text/event-stream"
    for part in [event.data for event in events_of(text.encode())] if is_stream else [json.loads(text)]:
        reader.add(part)
    return reader


@pytest.mark.parametrize("name", ANSWERED)
def test_what_vllm_wrote_is_read_without_a_remark_that_counts(name: str) -> None:
    reader = read(name)
    remarks = [*reader.remarks, *(each for choice in reader.choices.values() for each in choice.remarks)]
    assert {each.kind for each in remarks} <= {"stated"}
    assert len(reader.choices) == RECORDED[name]["request"].get("n", 1)
    for choice in reader.choices.values():
        assert choice.text
        assert choice.ids
        assert choice.finish in ("stop", "length")
    assert reader.fields["prompt_token_ids"]


def test_pieces_of_a_call_are_joined_by_their_number() -> None:
    reader = CompletionReader("chat")
    pieces: list[dict[str, Any]] = [
        {"index": 1, "id": "b", "type": "function", "function": {"name": "wait", "arguments": ""}},
        {"index": 0, "id": "a", "type": "function", "function": {"name": "cut", "arguments": '{"at"'}},
        {"index": 0, "function": {"arguments": ": 3}"}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    for piece in pieces:
        reader.add({"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]})
    assert reader.choices[0].fields()["calls"] == [["cut", '{"at": 3}'], ["wait", "{}"]]
    reader.add({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "pay"}}]}}]})
    assert [each.kind for each in reader.choices[0].remarks if each.kind != "stated"] == ["refused"]


@pytest.mark.parametrize(
    "part",
    [
        {"choices": {}},
        {"choices": ["a"]},
        {"choices": [{"index": -1}]},
        {"choices": [{"index": 1000}]},
        {"choices": [{"text": 5}]},
        {"choices": [{"delta": "a"}]},
        {"choices": [{"delta": {"tool_calls": ["a"]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": 5}}]}}]},
        {"choices": [{"delta": {"reasoning": {}, "reasoning_content": ["a"]}}]},
        {"usage": ["a"]},
    ],
)
def test_what_is_no_part_of_an_answer_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="response"):
        CompletionReader("chat").add(part)


def test_a_response_of_events_that_agree_is_read_without_a_remark() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "wood"}]}
    place = {"output_index": 0, "content_index": 0}
    reader = ResponsesReader()
    for event in (
        {"type": "response.created", "response": {"output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", **place, "delta": "wo"},
        {"type": "response.output_text.delta", **place, "delta": "od"},
        {"type": "response.output_text.done", **place, "text": "wood"},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"object": "response", "status": "completed", "output": [item]}},
    ):
        reader.add_event(event)
    assert reader.is_ended
    assert (reader.choices[0].text, [*reader.remarks], reader.choices[0].remarks) == ("wood", [], [])


def test_a_form_is_told_by_the_request_and_else_by_the_answer() -> None:
    assert [form_of_request(each) for each in ({"messages": []}, {"prompt": ""}, {"input": ""})] == [
        *("chat", "text", "responses")
    ]
    answers: list[dict[str, Any]] = [
        {"choices": [{"message": {}}]},
        {"choices": [{"text": "", "message": None}]},
        {"output": []},
        {"output": [], "choices": []},
    ]
    assert [form_of_answer(each) for each in answers] == ["chat", "text", "responses", "text"]

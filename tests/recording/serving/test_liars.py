"""One honest receipt under bodies that show something else: no such body is accepted, and no honest body is rejected.

Each lie stands beside honest bodies of the same form: those of our own server, and those that other servers write.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tallystick.audits.answers.background import AskedCall
from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.watching import read_answer
from tallystick.core.errors import MalformedError
from tallystick.tally.answers import verify

POLICY = ReceiptPolicy(sampler=SamplerRule(dishonest=0.9), demands=())
EVIL = "Wire the money to account 66."
SHARED: dict[str, Any] = {"model": "tiny", "seed": 3, "tally_nonce": "ab" * 16}
CHAT = SHARED | {"messages": [{"role": "user", "content": "halves"}], "max_tokens": 8}
TEXT = SHARED | {"prompt": "the stick", "max_tokens": 8}
RESPONSES = SHARED | {"input": "halves", "max_output_tokens": 8}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat, two": ("/v1/chat/completions", CHAT | {"n": 2}),
    "chat, logprobs": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 3}),
    "text": ("/v1/completions", TEXT),
    "text, two": ("/v1/completions", TEXT | {"n": 2}),
    "text, logprobs": ("/v1/completions", TEXT | {"logprobs": 2}),
    "responses": ("/v1/responses", RESPONSES),
}
Body = dict[str, Any]
Events = list[tuple[str, Body]]


@pytest.fixture(scope="module")
def tokens_only(serving: Any, long_model: Any) -> Iterator[Any]:
    """Receipts without fingerprints: judged by tokens alone."""
    with serving(long_model) as running:
        yield running


@pytest.fixture(scope="module")
def bodies(tokens_only: Any) -> dict[str, Body]:
    """An honest body for each request."""
    return {name: tokens_only.http.post(path, json=body).json() for name, (path, body) in REQUESTS.items()}


@pytest.fixture(scope="module")
def streams(tokens_only: Any) -> dict[str, Events]:
    """The events of an honest stream for each request."""
    return {
        name: events_in(tokens_only.http.post(path, json=body | {"stream": True}).content)
        for name, (path, body) in REQUESTS.items()
    }


def events_in(stream: bytes) -> Events:
    found: Events = []
    for event in stream.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.split("\n") if line)
        if fields and fields["data"] != "[DONE]":
            found.append((fields.get("event", ""), json.loads(fields["data"])))
    return found


def written(events: Events, end: str = "data: [DONE]\n\n") -> bytes:
    return "".join(map(one_event, events)).encode() + end.encode()


def one_event(event: tuple[str, Body]) -> str:
    name, data = event
    return f"event: {name}\n" * bool(name) + f"data: {json.dumps(data)}\n\n"


def outcome(answer: Any, model: Any, request: Body) -> str:
    """The outcome; what has no reading at all is `unread`."""
    try:
        return str(verify(answer, model=model, policy=POLICY, request=request).verdict.outcome)
    except MalformedError:
        return "unread"


def outcome_of_bytes(content: bytes, model: Any, request: Body, is_stream: bool = True) -> str:
    """The outcome of a response as it came over the wire, read as `tallystick.wrap` reads it."""
    call = AskedCall(request | {"stream": is_stream}, "here", 1)
    try:
        reader = read_answer(call, httpx.Response(200, content=content))
    except MalformedError:
        return "unread"
    return outcome(reader, model, request)


def at(path: str, value: Any) -> Callable[[Body], None]:
    """Put a value at a dotted path."""

    def change(body: Body) -> None:
        place: Any = body
        *parents, last = path.split(".")
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value

    return change


def said(path: str, say: Callable[[str], str]) -> Callable[[Body], None]:
    """Change a text at a dotted path."""

    def change(body: Body) -> None:
        place: Any = body
        *parents, last = path.split(".")
        for name in parents:
            place = place[int(name) if isinstance(place, list) else name]
        place[last] = say(place[last])

    return change


def other_answer(body: Body) -> None:
    body["choices"].append(copy.deepcopy(body["choices"][0]) | {"index": 1})


CALL = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": '{"to": 66}'}}
MESSAGE = "choices.0.message."
REJECTED, OPEN, UNREAD = "rejected", "inconclusive", "unread"
WHOLE: list[tuple[str, str, Callable[[Body], None], str]] = [
    ("chat", "another text", at(MESSAGE + "content", EVIL), REJECTED),
    ("chat", "a text withheld", at(MESSAGE + "content", None), REJECTED),
    ("chat", "a space more", said(MESSAGE + "content", lambda text: text + " "), REJECTED),
    ("chat", "a character of no width", said(MESSAGE + "content", lambda text: text + "\u200b"), REJECTED),
    ("chat", "a combining character", said(MESSAGE + "content", lambda text: text + "\u0301"), REJECTED),
    ("chat", "right to left", said(MESSAGE + "content", lambda text: "\u202e" + text), REJECTED),
    ("chat", "a lone surrogate", said(MESSAGE + "content", lambda text: text + "\ud800"), UNREAD),
    ("chat", "parts", at(MESSAGE + "content", [{"type": "text", "text": EVIL}]), REJECTED),
    ("chat", "parts of another type", at(MESSAGE + "content", [{"type": "thinking", "text": EVIL}]), REJECTED),
    ("chat", "refusal", at(MESSAGE + "refusal", EVIL), REJECTED),
    ("chat", "reasoning_content", at(MESSAGE + "reasoning_content", EVIL), REJECTED),
    ("chat", "reasoning", at(MESSAGE + "reasoning", EVIL), REJECTED),
    ("chat", "all of it as reasoning", lambda body: thought_of(body), OPEN),
    ("chat", "reasoning_details", at(MESSAGE + "reasoning_details", [{"text": EVIL}]), OPEN),
    ("chat", "function_call", at(MESSAGE + "function_call", CALL["function"]), REJECTED),
    ("chat", "tool_calls", at(MESSAGE + "tool_calls", [CALL]), REJECTED),
    ("chat", "annotations", at(MESSAGE + "annotations", [{"type": "url", "url": "https://e.vil"}]), REJECTED),
    ("chat", "audio", at(MESSAGE + "audio", {"id": "a", "transcript": EVIL}), REJECTED),
    ("chat", "images", at(MESSAGE + "images", [{"image_url": {"url": "data:,evil"}}]), REJECTED),
    ("chat", "role", at(MESSAGE + "role", "system"), REJECTED),
    ("chat", "name", at(MESSAGE + "name", EVIL), OPEN),
    ("chat", "text in the message", at(MESSAGE + "text", EVIL), REJECTED),
    ("chat", "an unknown field of the message", at(MESSAGE + "answer", "No"), OPEN),
    ("chat", "text beside the message", at("choices.0.text", EVIL), REJECTED),
    ("chat", "a delta beside the message", at("choices.0.delta", {"content": EVIL}), REJECTED),
    ("chat", "content of the choice", at("choices.0.content", EVIL), REJECTED),
    ("chat", "tool calls of the choice", at("choices.0.tool_calls", [CALL]), REJECTED),
    ("chat", "an unknown field of the choice", at("choices.0.note", EVIL), OPEN),
    ("chat", "finish_reason", at("choices.0.finish_reason", "stop"), REJECTED),
    ("chat", "finish by a call", at("choices.0.finish_reason", "tool_calls"), REJECTED),
    ("chat", "finish by a filter", at("choices.0.finish_reason", "content_filter"), REJECTED),
    ("chat", "a stop text", at("choices.0.stop_reason", EVIL), OPEN),
    ("chat", "an index twice", lambda body: body["choices"].append(body["choices"][0]), REJECTED),
    ("chat", "another choice", other_answer, REJECTED),
    ("chat", "an index that is none", at("choices.0.index", "0"), UNREAD),
    ("chat", "choices that are none", at("choices", {"0": {}}), UNREAD),
    ("chat", "the object of another form", at("object", "response"), REJECTED),
    ("chat", "output_text", at("output_text", EVIL), REJECTED),
    ("chat", "response", at("response", {"object": "response", "output_text": EVIL}), REJECTED),
    ("chat", "output", at("output", [{"type": "message", "content": []}, EVIL]), REJECTED),
    ("chat", "text", at("text", EVIL), REJECTED),
    ("chat", "content", at("content", EVIL), REJECTED),
    ("chat", "error", at("error", {"message": EVIL}), REJECTED),
    ("chat", "system_fingerprint", at("system_fingerprint", EVIL), OPEN),
    ("chat", "model", at("model", EVIL), OPEN),
    ("chat", "the id of a call", at(MESSAGE + "tool_calls", [CALL | {"id": EVIL}]), REJECTED),
    ("chat", "service_tier", at("service_tier", {"say": "a\nb"}), OPEN),
    ("chat", "an unknown field", at("note", EVIL), OPEN),
    ("chat", "an unknown name", at("wizard", {EVIL: 1}), OPEN),
    ("chat", "prompt_text", at("prompt_text", EVIL), OPEN),
    ("chat", "prompt_logprobs", at("prompt_logprobs", [None, {"5": {"decoded_token": EVIL}}]), OPEN),
    ("chat", "another id", at("id", "chatcmpl-other"), REJECTED),
    ("chat", "other tokens", at("choices.0.token_ids", [1, 2]), REJECTED),
    ("chat", "another prompt", at("prompt_token_ids", [1, 2]), REJECTED),
    ("chat", "two prompts", at("choices.0.prompt_token_ids", [1, 2]), REJECTED),
    ("chat", "a bill", at("usage.completion_tokens", 80), REJECTED),
    ("chat", "a sum alone", at("usage", {"total_tokens": 800}), REJECTED),
    ("chat", "a bill under other names", at("usage.output_tokens", 80), REJECTED),
    ("chat", "a line on the bill", at("usage.note", EVIL), OPEN),
    ("chat, two", "one of two", lambda body: body["choices"].pop(), REJECTED),
    ("chat, two", "answers exchanged", lambda body: swap(body["choices"], "message"), REJECTED),
    ("chat, two", "numbers exchanged", lambda body: swap(body["choices"], "index"), REJECTED),
    ("chat, two", "the first receipt again", lambda body: again(body["receipts"]), REJECTED),
    ("chat, two", "a receipt beside receipts", lambda body: body.update(receipt=body["receipts"][1]), UNREAD),
    ("chat, two", "one receipt of two", lambda body: body.pop("receipts"), OPEN),
    ("chat, logprobs", "a token named", at("choices.0.logprobs.content.0.token", EVIL), OPEN),
    ("chat, logprobs", "bytes of a token", at("choices.0.logprobs.content.0.bytes", [*EVIL.encode()]), OPEN),
    ("chat, logprobs", "a likely token", at("choices.0.logprobs.content.2.top_logprobs.1.token", EVIL), OPEN),
    ("chat, logprobs", "bytes", at("choices.0.logprobs.content.2.top_logprobs.1.bytes", [69]), OPEN),
    ("chat, logprobs", "a number", at("choices.0.logprobs.content.1.logprob", -0.01), REJECTED),
    ("chat, logprobs", "a likely number", at("choices.0.logprobs.content.1.top_logprobs.0.logprob", -0.01), REJECTED),
    ("chat, logprobs", "fewer", lambda body: body["choices"][0]["logprobs"]["content"].pop(), REJECTED),
    ("chat, logprobs", "a refusal", at("choices.0.logprobs.refusal", [{"token": EVIL, "logprob": 0}]), REJECTED),
    ("chat, logprobs", "in two forms", at("choices.0.logprobs.tokens", [EVIL]), REJECTED),
    ("chat, logprobs", "an unknown field", at("choices.0.logprobs.content.0.note", EVIL), OPEN),
    ("text", "another text", at("choices.0.text", EVIL), REJECTED),
    ("text", "a message", at("choices.0.message", {"content": EVIL}), REJECTED),
    ("text", "the prompt said again", said("choices.0.text", lambda text: "the stick" + text), REJECTED),
    ("text", "no text but a message", lambda body: as_message(body["choices"][0]), REJECTED),
    ("text", "output_text", at("output_text", EVIL), REJECTED),
    ("text, two", "one of two", lambda body: body["choices"].pop(), REJECTED),
    ("text, logprobs", "a token named", at("choices.0.logprobs.tokens.0", EVIL), OPEN),
    ("text, logprobs", "a likely token", at("choices.0.logprobs.top_logprobs.0", {EVIL: -1.0}), REJECTED),
    ("text, logprobs", "a name for a likely one", lambda body: renamed(body), OPEN),
    ("responses", "another text", at("output.0.content.0.text", EVIL), REJECTED),
    ("responses", "output_text", at("output_text", EVIL), REJECTED),
    ("responses", "a refusal", at("output.0.content.0", {"type": "refusal", "refusal": EVIL}), REJECTED),
    ("responses", "annotations", at("output.0.content.0.annotations", [{"url": "https://e.vil"}]), REJECTED),
    ("responses", "another part", lambda body: body["output"][0]["content"].append(part(EVIL)), REJECTED),
    ("responses", "another message", lambda body: body["output"].append(message(EVIL)), REJECTED),
    ("responses", "a call", lambda body: body["output"].append(function_call()), REJECTED),
    ("responses", "a search", lambda body: body["output"].append({"type": "web_search_call"}), REJECTED),
    ("responses", "reasoning", lambda body: body["output"].insert(0, thought(EVIL)), REJECTED),
    ("responses", "a summary", lambda body: body["output"].insert(0, thought("", summary=[{"text": EVIL}])), OPEN),
    ("responses", "sealed", lambda body: body["output"].insert(0, thought("", encrypted_content="ab")), OPEN),
    ("responses", "role", at("output.0.role", "user"), REJECTED),
    ("responses", "choices", at("choices", [{"message": {"content": EVIL}}]), REJECTED),
    ("responses", "status", at("status", "completed"), REJECTED),
    ("responses", "details", at("incomplete_details.note", EVIL), OPEN),
    ("responses", "a reason", at("incomplete_details.reason", EVIL), REJECTED),
    ("responses", "metadata of an item", at("output.0.status", EVIL), OPEN),
    ("responses", "error", at("error", {"message": EVIL}), REJECTED),
    ("responses", "an unknown field", at("note", EVIL), OPEN),
    ("responses", "an unknown field of an item", at("output.0.note", EVIL), OPEN),
    ("responses", "a bill", at("usage.output_tokens", 80), REJECTED),
    ("responses", "object", at("object", "chat.completion"), REJECTED),
]


def thought_of(body: Body) -> None:
    """The text of the answer in a field that programs hide."""
    said = body["choices"][0]["message"]
    said |= {"reasoning_content": said["content"], "content": ""}


def swap(listed: list[Body], name: str) -> None:
    listed[0][name], listed[1][name] = listed[1][name], listed[0][name]


def again(listed: list[Any]) -> None:
    listed[1] = listed[0]


def as_message(choice: Body) -> None:
    choice["message"] = {"content": choice.pop("text")}


def renamed(body: Body) -> None:
    first = body["choices"][0]["logprobs"]["top_logprobs"][0]
    name = next(iter(first))
    first[EVIL] = first.pop(name)


def part(text: str) -> Body:
    return {"type": "output_text", "text": text}


def message(text: str) -> Body:
    return {"type": "message", "role": "assistant", "content": [part(text)]}


def function_call() -> Body:
    return {"type": "function_call", "call_id": "c", **CALL["function"]}  # type: ignore[dict-item]


def thought(text: str, **more: Any) -> Body:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}], **more}


@pytest.mark.parametrize(("name", "lie", "change", "expected"), WHOLE, ids=[f"{a}: {b}" for a, b, *_ in WHOLE])
def test_a_body_that_shows_something_else_is_not_accepted(
    bodies: dict[str, Body], long_model: Any, name: str, lie: str, change: Callable[[Body], None], expected: str
) -> None:
    body = copy.deepcopy(bodies[name])
    change(body)
    found = outcome(body, long_model, REQUESTS[name][1])
    assert found == expected, lie
    assert outcome(bodies[name], long_model, REQUESTS[name][1]) == "accepted"


def nothing_more(body: Body) -> None:
    """Fields that say nothing, as vLLM 0.32 writes them."""
    body |= {"service_tier": None, "prompt_logprobs": None, "prompt_text": None, "kv_transfer_params": None}
    for choice in body["choices"]:
        empty = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None}
        choice["message"] |= {**empty, "tool_calls": []}
        choice |= {"stop_reason": None, "routed_experts": None}


def by_llama_cpp(body: Body) -> None:
    body |= {"system_fingerprint": "b8681-x", "timings": {"prompt_n": 3, "predicted_per_second": 50.5}}


def by_sglang(body: Body) -> None:
    body["choices"][0]["matched_stop"] = None
    body["usage"] |= {"prompt_tokens_details": None, "reasoning_tokens": 0}
    body["metadata"] = {"weight_version": "default"}


def by_azure(body: Body) -> None:
    body["prompt_filter_results"] = [{"prompt_index": 0, "content_filter_results": {"hate": {"severity": "safe"}}}]
    body["choices"][0]["content_filter_results"] = {"hate": {"filtered": False, "severity": "safe"}}


def by_router(body: Body) -> None:
    body |= {"provider": "Google AI Studio"}
    body["usage"] |= {"cost": 0.01, "completion_tokens_details": {"reasoning_tokens": 3}}
    body["choices"][0] |= {"native_finish_reason": "max_tokens", "seed": 3}


def by_groq(body: Body) -> None:
    body |= {"x_groq": {"id": "req_01j"}, "service_tier": "on_demand", "usage_breakdown": None}
    body["usage"] |= {"queue_time": 0.1, "total_time": 0.2}


def twice_the_same(body: Body) -> None:
    choice = body["choices"][0]
    choice["text"] = choice["message"]["content"]


def in_parts(body: Body) -> None:
    said = body["choices"][0]["message"]
    said["content"] = [{"type": "text", "text": said["content"][:3]}, {"type": "text", "text": said["content"][3:]}]


def from_the_library(body: Body) -> None:
    from openai.types.chat import ChatCompletion

    body.update(json.loads(ChatCompletion.model_validate(body).to_json(exclude_unset=False)))


HONEST: list[Callable[[Body], None]] = [
    *(nothing_more, by_llama_cpp, by_sglang, by_azure, by_router, by_groq, twice_the_same, in_parts),
    from_the_library,
    at("model", "tiny-2026-11-01"),
    at("usage.prompt_tokens_details", {"cached_tokens": 2}),
    at("wizard", {"level": 3, "is_on": True}),
]


@pytest.mark.parametrize("shape", HONEST)
@pytest.mark.parametrize("name", ["chat", "chat, two", "chat, logprobs"])
def test_a_body_as_other_servers_write_it_is_accepted(
    bodies: dict[str, Body], long_model: Any, name: str, shape: Callable[[Body], None]
) -> None:
    body = copy.deepcopy(bodies[name])
    shape(body)
    assert outcome(body, long_model, REQUESTS[name][1]) == "accepted"


def test_statements_that_nothing_is_compared_with_are_named_in_one_line(bodies: Any, long_model: Any) -> None:
    body = copy.deepcopy(bodies["chat"])
    by_router(body)
    body["model"] = "other"
    report = verify(body, model=long_model, policy=POLICY, request=CHAT)
    [line] = [each for each in report.verdict.not_checked if "states of itself" in each]
    for name in ("engine", "usage.cost", "usage.completion_tokens_details", "provider", "model ('other' for 'tiny')"):
        assert name in line
    assert "system_fingerprint" not in line  # it is the model root, which is compared


@pytest.mark.parametrize("name", REQUESTS)
def test_an_honest_answer_is_accepted_in_every_way_of_reading(
    bodies: dict[str, Body], streams: dict[str, Events], long_model: Any, name: str
) -> None:
    request = REQUESTS[name][1]
    assert outcome(bodies[name], long_model, request) == "accepted"
    assert outcome_of_bytes(json.dumps(bodies[name]).encode(), long_model, request, is_stream=False) == "accepted"
    assert outcome_of_bytes(written(streams[name]), long_model, request) == "accepted"


@pytest.mark.parametrize("asked", ["chat", "text", "responses"])
@pytest.mark.parametrize("name", ["chat", "text", "responses"])
def test_the_request_says_in_which_form_an_answer_is_read(
    bodies: dict[str, Body], streams: dict[str, Events], long_model: Any, name: str, asked: str
) -> None:
    """The same tokens in another form are shown by other fields, or by none."""
    request = REQUESTS[asked][1]
    for found in (
        outcome(bodies[name], long_model, request),
        outcome_of_bytes(json.dumps(bodies[name]).encode(), long_model, request, is_stream=False),
        outcome_of_bytes(written(streams[name]), long_model, request),
    ):
        assert (found == "accepted") == (name == asked)


def test_whether_it_is_a_stream_is_what_was_asked(bodies: Any, streams: Any, long_model: Any) -> None:
    assert outcome_of_bytes(json.dumps(bodies["chat"]).encode(), long_model, CHAT, is_stream=True) == "unread"
    assert outcome_of_bytes(written(streams["chat"]), long_model, CHAT, is_stream=False) == "unread"


Edit = Callable[[Events], Events]


def chunk(number: int, change: Callable[[Body], None]) -> Edit:
    """Change one event of a stream."""

    def edit(events: Events) -> Events:
        change(events[number][1])
        return events

    return edit


def inserted(number: int, data: Body, name: str = "") -> Edit:
    return lambda events: [*events[:number], (name, data), *events[number:]]


def delta(**fields: Any) -> Body:
    return {"choices": [{"index": 0, "delta": fields}]}


def moved(events: Events) -> Events:
    return [events[0], events[3], events[1], events[2], *events[4:]]


def all_text_in(path: str) -> Edit:
    """The text shown moves to another field of the chunk, with more behind it."""

    def edit(events: Events) -> Events:
        for _, data in events:
            at(path, EVIL)(data)
        return events

    return edit


DELTA = "choices.0.delta."
CALLING, SUMMING = "response.function_call_arguments.delta", "response.reasoning_summary_text.delta"
EVIL_EVENT = json.dumps({"choices": [{"index": 0, "delta": {"content": EVIL}}]}).encode()
STREAMED: list[tuple[str, str, Edit, str]] = [
    ("chat", "text in a chunk", chunk(2, at(DELTA + "content", EVIL)), REJECTED),
    ("chat", "a chunk more", inserted(3, delta(content=EVIL)), REJECTED),
    ("chat", "a chunk less", lambda events: [*events[:2], *events[3:]], REJECTED),
    ("chat", "chunks out of order", moved, REJECTED),
    ("chat", "the honest response in a chunk", inserted(1, {"response": {"output_text": EVIL}}), REJECTED),
    ("chat", "the form of a chunk", chunk(1, at("object", "response")), REJECTED),
    ("chat", "text beside the delta", all_text_in("choices.0.text"), REJECTED),
    ("chat", "a message in a chunk", chunk(2, at("choices.0.message", {"content": EVIL})), REJECTED),
    ("chat", "a tool call", inserted(2, delta(tool_calls=[CALL | {"index": 0}])), REJECTED),
    ("chat", "a piece of a call", inserted(2, delta(tool_calls=[{"index": 0, "function": {"name": "x"}}])), REJECTED),
    ("chat", "refusal", inserted(2, delta(refusal=EVIL)), REJECTED),
    ("chat", "reasoning_content", inserted(2, delta(reasoning_content=EVIL)), REJECTED),
    ("chat", "function_call", inserted(2, delta(function_call={"name": "pay"})), REJECTED),
    ("chat", "annotations", inserted(2, delta(annotations=[{"url": EVIL}])), REJECTED),
    ("chat", "audio", inserted(2, delta(audio={"transcript": EVIL})), REJECTED),
    ("chat", "role", inserted(2, delta(role=EVIL)), REJECTED),
    ("chat", "an unknown field", inserted(2, delta(note=EVIL)), OPEN),
    ("chat", "another choice", inserted(2, {"choices": [{"index": 1, "delta": {"content": EVIL}}]}), REJECTED),
    ("chat", "a choice twice", inserted(2, {"choices": [{"index": 0, "delta": {}}] * 2}), REJECTED),
    ("chat", "two ends", inserted(99, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}), REJECTED),
    ("chat", "text behind the end", inserted(99, delta(content=EVIL)), REJECTED),
    ("chat", "another id", inserted(2, {"id": "chatcmpl-other", "choices": []}), REJECTED),
    ("chat", "two receipts", chunk(1, at("receipt", {"receipt": {"a": 1}})), UNREAD),
    ("chat", "two prompts", inserted(2, {"prompt_token_ids": [1], "choices": []}), REJECTED),
    ("chat", "an error", inserted(2, {"error": {"message": EVIL}}), REJECTED),
    ("chat", "an event with a name", inserted(2, delta(content=""), "thread.message"), UNREAD),
    ("chat", "an error event", inserted(2, {"message": EVIL}, "error"), UNREAD),
    ("chat, two", "one of two", lambda events: without_choice(events, 1), REJECTED),
    ("chat, logprobs", "a token named", chunk(2, at("choices.0.logprobs.content.0.token", EVIL)), OPEN),
    ("text", "text in a chunk", chunk(1, at("choices.0.text", EVIL)), REJECTED),
    ("text", "a delta beside the text", chunk(1, at("choices.0.delta", {"content": EVIL})), REJECTED),
    ("text", "a message", chunk(1, at("choices.0.message", {"content": EVIL})), REJECTED),
    ("responses", "a delta", chunk(4, at("delta", EVIL)), REJECTED),
    ("responses", "all deltas", lambda events: said_in(events, "delta", EVIL), REJECTED),
    ("responses", "the text when it is done", lambda events: said_in(events, "text", EVIL), REJECTED),
    ("responses", "a part that is done", lambda events: said_in(events, "part", part(EVIL)), REJECTED),
    ("responses", "an item that is done", lambda events: said_in(events, "item", message(EVIL)), REJECTED),
    ("responses", "an output before", chunk(0, at("response.output", [message(EVIL)])), REJECTED),
    ("responses", "an end before", lambda events: [*events, *ended_by(events, EVIL)], REJECTED),
    ("responses", "an end behind", lambda events: [*ended_by(events, EVIL), *events], REJECTED),
    ("responses", "more behind the end", lambda events: [*events, *delta_events(EVIL)], REJECTED),
    ("responses", "an item of its own", lambda events: [events[0], *delta_events(EVIL, 5), *events[1:]], REJECTED),
    ("responses", "a refusal", lambda events: between(events, "response.refusal.delta", delta=EVIL), REJECTED),
    (
        "responses",
        "a note",
        lambda events: between(events, "response.output_text.annotation.added", note=EVIL),
        REJECTED,
    ),
    ("responses", "a call", lambda events: between(events, CALLING, delta=EVIL), REJECTED),
    ("responses", "reasoning", lambda events: between(events, "response.reasoning_text.delta", delta=EVIL), REJECTED),
    ("responses", "a summary", lambda events: between(events, SUMMING, delta=EVIL), OPEN),
    ("responses", "an unknown event", lambda events: between(events, "response.wizardry", say=EVIL), OPEN),
    ("responses", "an unknown field", chunk(4, at("note", EVIL)), OPEN),
    ("responses", "the name of an event", lambda events: [("response.wizardry", each) for _, each in events], UNREAD),
    ("responses", "order by number", lambda events: numbers_reversed(events), REJECTED),
]


def without_choice(events: Events, number: int) -> Events:
    for _, data in events:
        data["choices"] = [each for each in data["choices"] if each["index"] != number]
    return events


def said_in(events: Events, name: str, value: Any) -> Events:
    for _, data in events:
        if name in data:
            data[name] = value
    return events


def ended_by(events: Events, text: str) -> Events:
    name, last = copy.deepcopy(events[-1])
    last["response"]["output"] = [message(text)]
    return [(name, last)]


def delta_events(text: str, item: int = 0) -> Events:
    kind = "response.output_text.delta"
    return [(kind, {"type": kind, "output_index": item, "content_index": 0, "delta": text})]


def between(events: Events, kind: str, **fields: Any) -> Events:
    return [*events[:5], (kind, {"type": kind, "output_index": 3, **fields}), *events[5:]]


def numbers_reversed(events: Events) -> Events:
    numbers = [data["sequence_number"] for _, data in events]
    for (_, data), number in zip(events, reversed(numbers), strict=True):
        data["sequence_number"] = number
    return events


@pytest.mark.parametrize(("name", "lie", "edit", "expected"), STREAMED, ids=[f"{a}: {b}" for a, b, *_ in STREAMED])
def test_a_stream_that_shows_something_else_is_not_accepted(
    streams: dict[str, Events], long_model: Any, name: str, lie: str, edit: Edit, expected: str
) -> None:
    lied = written(edit(copy.deepcopy(streams[name])))
    assert outcome_of_bytes(lied, long_model, REQUESTS[name][1]) == expected, lie


BYTES: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("a line by carriage returns", lambda stream: b": \rdata: " + EVIL_EVENT + b"\r\r\n" + stream),
    ("an event by carriage returns", lambda stream: stream.replace(b"\n\n", b"\r\r", 1)),
    ("a byte order mark", lambda stream: b"\xef\xbb\xbf" + stream),
    ("an event behind the end", lambda stream: stream + written([("", delta(content=EVIL))], "")),
    ("an event cut off", lambda stream: stream[:-14] + written([("", delta(content=EVIL))], "")[:-2]),
    ("no JSON", lambda stream: b"data: EVIL\n\n" + stream),
    ("no object", lambda stream: b'data: ["EVIL"]\n\n' + stream),
    ("no UTF-8", lambda stream: b'data: {"a": "\xff"}\n\n' + stream),
    ("a key twice", lambda stream: stream.replace(b'"content": ', b'"content": "EVIL", "content": ', 1)),
]


@pytest.mark.parametrize(("lie", "edit"), BYTES, ids=[lie for lie, _ in BYTES])
def test_bytes_that_readers_take_apart_in_different_ways_have_no_reading(
    streams: dict[str, Events], long_model: Any, lie: str, edit: Callable[[bytes], bytes]
) -> None:
    stream = written(streams["chat"])
    assert edit(stream) != stream
    assert outcome_of_bytes(edit(stream), long_model, CHAT) == "unread", lie


@pytest.mark.parametrize(
    "edit",
    [
        lambda stream: stream.replace(b"\n", b"\r\n"),
        lambda stream: b": PROCESSING\n\n" + stream,
        lambda stream: b": keep-alive\n" + stream,
        lambda stream: b"retry: 500\nid: 1\n" + stream,
        lambda stream: stream[:-2],
        lambda stream: stream[:-14],
        lambda stream: b"\n\n" + stream,
        lambda stream: b"event: message\n" + stream,
        lambda stream: stream.replace(b'{"id"', b'{\ndata: "id"', 1),
    ],
)
def test_a_stream_as_other_servers_write_it_is_accepted(
    streams: dict[str, Events], long_model: Any, edit: Callable[[bytes], bytes]
) -> None:
    stream = written(streams["chat"])
    assert edit(stream) != stream
    assert outcome_of_bytes(edit(stream), long_model, CHAT) == "accepted"


@pytest.mark.parametrize(
    "edit",
    [
        inserted(0, {"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
        inserted(99, {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]}),
        inserted(2, delta(role="assistant", content="", refusal=None, tool_calls=None)),
        lambda events: [(name, data | {"obfuscation": "a8Zk"}) for name, data in events],
        lambda events: [(name, data | {"usage": data.get("usage")}) for name, data in events],
    ],
)
def test_chunks_as_other_servers_write_them_are_accepted(
    streams: dict[str, Events], long_model: Any, edit: Edit
) -> None:
    assert outcome_of_bytes(written(edit(copy.deepcopy(streams["chat"]))), long_model, CHAT) == "accepted"


@pytest.mark.parametrize(
    "body", [b"\xef\xbb\xbf{}", b'{"a": 1, "a": 2}', '{"a": "é"}'.encode("utf-16"), b"[1]", b"{} {}"]
)
def test_a_whole_body_with_more_than_one_reading_has_none(long_model: Any, body: bytes) -> None:
    assert outcome_of_bytes(body, long_model, CHAT, is_stream=False) == "unread"


@pytest.mark.parametrize("top", [1, 2, 3])
def test_the_chosen_token_may_stand_first_among_the_most_likely(tokens_only: Any, long_model: Any, top: int) -> None:
    """vLLM lists it first, and then the most likely others; OpenAI lists the most likely ones alone."""
    request = CHAT | {"logprobs": True, "top_logprobs": top, "max_tokens": 24, "temperature": 1.3}
    wider = tokens_only.http.post("/v1/chat/completions", json=request | {"top_logprobs": top + 1}).json()
    listed = wider["choices"][0]["logprobs"]["content"]
    unlike = 0
    for entry in listed:
        chosen = {name: entry[name] for name in ("token", "logprob", "bytes")}
        others = [each for each in entry["top_logprobs"] if each["logprob"] != entry["logprob"]]
        unlike += len(others) > top
        entry["top_logprobs"] = [chosen, *others][:top]
    assert unlike  # else both ways of listing are one
    assert outcome(wider, long_model, request) == "accepted"
    worse = copy.deepcopy(wider)
    worse["choices"][0]["logprobs"]["content"][3]["top_logprobs"][-1]["logprob"] -= 0.5
    assert outcome(worse, long_model, request) == "rejected"

"""Answers that follow a schema: the mask is part of what a receipt states, and a verifier makes it from the request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.formats.receipt import Receipt
from tallystick.formats.signing import SigningKey, sign_receipt
from tallystick.tally.answers import verify

pytest.importorskip("llguidance", reason="needs the extra `grammar`")

POLICY = ReceiptPolicy(sampler=SamplerRule(dishonest=0.9), demands=())
SCHEMA = {
    "type": "object",
    "properties": {
        "stick": {"enum": ["split", "whole"]},
        "at": {"type": "integer"},
        "by": {"type": "string", "maxLength": 9},
    },
    "required": ["stick", "at", "by"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "stick", "schema": SCHEMA, "strict": True}}
BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "halves"}],
    "max_tokens": 200,
    "seed": 3,
    "tally_nonce": "ab" * 16,
}
TOOLS = [
    {"function": {"name": "cut", "parameters": SCHEMA, "description": "Cuts."}, "type": "function"},
    {"type": "function", "function": {"name": "wait"}},
]


@pytest.fixture(scope="module")
def tokens_only(serving: Any, long_model: Any) -> Iterator[Any]:
    """Receipts without fingerprints: judged by tokens alone."""
    with serving(long_model) as running:
        yield running


@pytest.fixture(scope="module")
def answered(tokens_only: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """An answer by a schema, and its request."""
    return asked(tokens_only, response_format=FORMAT)


def asked(server: Any, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    response = server.http.post("/v1/chat/completions", json=BODY | fields)
    assert response.status_code == 200, response.text
    return response.json(), BODY | fields


def judged(response: Any, model: Any, body: Any) -> Any:
    return verify(response, model=model, policy=POLICY, request=body).verdict


def restated(response: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The response with other statements about the sampler, signed again by its provider."""
    receipt = response["receipt"]["receipt"]
    sampler = {name: value for name, value in {**receipt["sampler"], **changes}.items() if value is not None}
    changed = Receipt.from_json({**receipt, "sampler": sampler}, "receipt")
    return {**response, "receipt": sign_receipt(changed, SigningKey(bytes(32))).to_json()}


def test_an_answer_follows_its_schema_and_its_receipt_is_accepted(answered: Any, long_model: Any) -> None:
    response, body = answered
    found = json.loads(response["choices"][0]["message"]["content"])
    assert list(found) == ["stick", "at", "by"]
    assert found["stick"] in ("split", "whole")
    assert response["receipt"]["receipt"]["sampler"]["grammar"]["kind"] == "json_schema"
    verdict = judged(response, long_model, body)
    assert verdict.outcome == "accepted", [*verdict.unavailable, *(str(each) for each in verdict.findings)]


def test_an_answer_with_a_grammar_is_not_generated_again_and_not_rejected_for_that(
    answered: Any, long_model: Any
) -> None:
    response, body = answered
    report = verify(response, model=long_model, policy=POLICY, request=body, rung=4)
    assert report.verdict.outcome == "inconclusive"
    assert any("it follows a grammar" in line for line in report.verdict.unavailable), report.verdict.unavailable


def test_a_grammar_that_nobody_asked_for_another_schema_and_no_request_are_not_accepted(
    answered: Any, long_model: Any
) -> None:
    response, body = answered
    assert judged(response, long_model, {**body, "response_format": None}).outcome == "rejected"
    other = {**FORMAT, "json_schema": {"name": "stick", "schema": {**SCHEMA, "required": ["at"]}}}
    assert judged(response, long_model, {**body, "response_format": other}).outcome == "rejected"
    assert judged(response, long_model, {**body, "response_format": {"type": "json_object"}}).outcome == "rejected"
    verdict = judged(response, long_model, None)
    assert verdict.outcome == "inconclusive"
    assert any("give the request" in line for line in verdict.unavailable)


def test_a_receipt_without_the_grammar_that_was_asked_for_is_not_accepted(
    answered: Any, tokens_only: Any, long_model: Any
) -> None:
    response, body = answered
    assert judged(restated(response, grammar=None), long_model, body).outcome == "rejected"  # tokens of no free answer
    free, _ = asked(tokens_only)
    verdict = judged(free, long_model, body)
    assert verdict.outcome == "inconclusive"
    assert any("JSON of a schema" in line for line in verdict.unavailable)


def test_tokens_outside_the_grammar_are_refused(answered: Any, tokens_only: Any, long_model: Any) -> None:
    free, _ = asked(tokens_only)
    claimed = restated(free, grammar=answered[0]["receipt"]["receipt"]["sampler"]["grammar"])
    verdict = judged(claimed, long_model, answered[1])
    assert verdict.outcome == "rejected"
    assert {each.name for each in verdict.findings if not each.agrees} >= {"sampler"}


@pytest.mark.parametrize(
    ("change", "line"), [({"version": "0.0.1"}, "0.0.1"), ({"library": "other"}, "only llguidance")]
)
def test_another_library_is_inconclusive_and_named(answered: Any, long_model: Any, change: Any, line: str) -> None:
    response, body = answered
    grammar = response["receipt"]["receipt"]["sampler"]["grammar"]
    verdict = judged(restated(response, grammar={**grammar, **change}), long_model, body)
    assert verdict.outcome == "inconclusive"
    assert any(line in each for each in verdict.unavailable)


def test_any_json_object(tokens_only: Any, long_model: Any) -> None:
    response, body = asked(tokens_only, response_format={"type": "json_object"}, max_tokens=60)
    assert response["choices"][0]["message"]["content"].lstrip().startswith("{")
    assert all(each.agrees for each in judged(response, long_model, body).findings)


HOSTILE: dict[str, Any] = {
    "a large count": {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
    "nested counts": {"type": "array", "items": SCHEMA, "maxItems": 2000},
    "a pattern that is no regular one": {"type": "string", "pattern": "(a+)+$^"},
    "another server": {"$ref": "http://127.0.0.1:1/schema.json"},
    "no reference": {"$ref": "#/$defs/none"},
    "no schema": {"type": "wizard"},
    "what the library does not know": {"type": "string", "if": {"type": "string"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_at_once(tokens_only: Any, name: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": HOSTILE[name]}}
    response = tokens_only.http.post("/v1/chat/completions", json=BODY | {"response_format": wanted})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format"), response.text


def test_a_schema_nested_too_deep_or_too_long_is_refused(tokens_only: Any) -> None:
    deep: Any = {"type": "string"}
    for _ in range(80):
        deep = {"type": "array", "items": deep}
    for schema in (deep, {"enum": ["x" * 70_000]}):
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        response = tokens_only.http.post("/v1/chat/completions", json=BODY | {"response_format": wanted})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "response_format")


def test_a_demanded_call_is_delivered_as_one_and_read_again_by_the_verifier(tokens_only: Any, long_model: Any) -> None:
    choice = {"type": "function", "function": {"name": "cut"}}
    response, body = asked(tokens_only, tools=TOOLS, tool_choice=choice)
    message = response["choices"][0]["message"]
    [call] = message["tool_calls"]
    assert (message["content"], call["function"]["name"]) == (None, "cut")
    assert json.loads(call["function"]["arguments"])["stick"] in ("split", "whole")
    assert response["choices"][0]["finish_reason"] == "tool_calls"
    verdict = judged(response, long_model, body)
    assert verdict.outcome == "accepted", [*verdict.unavailable, *(str(each) for each in verdict.findings)]
    call["function"]["arguments"] = '{"stick": "split", "at": 5, "by": ""}'
    assert judged(response, long_model, body).outcome == "rejected"


def test_any_of_the_tools(tokens_only: Any, long_model: Any) -> None:
    response, body = asked(tokens_only, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    [call] = response["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] in ("cut", "wait")
    assert all(each.agrees for each in judged(response, long_model, body).findings)
    other = {**body, "tools": TOOLS[:1]}
    assert judged(response, long_model, other).outcome == "rejected"


def test_a_stream_ends_with_its_calls(tokens_only: Any) -> None:
    choice: Any = {"type": "function", "function": {"name": "cut"}}
    tools: Any = TOOLS
    stream = tokens_only.openai.chat.completions.create(
        model="tiny", messages=BODY["messages"], seed=3, max_tokens=200, stream=True, tools=tools, tool_choice=choice
    )
    calls = [call for chunk in stream for each in chunk.choices for call in each.delta.tool_calls or ()]
    assert json.loads("".join(call.function.arguments for call in calls))["stick"] in ("split", "whole")


def test_tools_that_a_template_does_not_know_have_to_be_demanded(tokens_only: Any) -> None:
    response = tokens_only.http.post("/v1/chat/completions", json=BODY | {"tools": TOOLS})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert asked(tokens_only, tools=TOOLS, tool_choice="none", max_tokens=2)[0]["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tool_choice": "required"},
        {"tools": TOOLS + TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_object"}, "min_tokens": 5},
    ],
)
def test_requests_that_contradict_themselves_are_refused(tokens_only: Any, fields: dict[str, Any]) -> None:
    assert tokens_only.http.post("/v1/chat/completions", json=BODY | fields).status_code == 400

"""Whatever a client sends, the server answers in the form of the OpenAI API and goes on."""

from __future__ import annotations

import json
import random
from typing import Any

import openai
import pytest

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 2}
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 2**31, 2**53, 2**70, 1e300, "", "x", "\u0000", "a" * 300, [], {}, [[]], [None]),
    *([0], [-1], ["x"], [{"role": "user"}], {"a": {"b": []}}, [[1, 2], [3]], ["a", "b"], [300], [[2**40]]),
]


def post(server: Any, path: str, body: Any) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.http.post(path, content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": -1}, "seed"),
        ({"n": 100}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "wizard"}}, "response_format"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"allowed_token_ids": [5], "bad_token_ids": [5]}, "allowed_token_ids"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"tally_nonce": "abc"}, "tally_nonce"),
        ({"wizardry": 1}, "wizardry"),
    ],
)
def test_a_wrong_field_is_named(server: Any, change: dict[str, Any], param: str) -> None:
    response = post(server, "/v1/chat/completions", CHAT | change)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_fields_that_change_nothing_are_accepted(server: Any) -> None:
    nothing: dict[str, Any] = {
        "logprobs": False,
        "tools": [],
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "response_format": {"type": "text"},
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "top_k": -1,
        "stop": None,
        "seed": None,
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "max_completion_tokens": 2,
    }
    assert post(server, "/v1/chat/completions", CHAT | nothing).status_code == 200


def test_an_answer_can_be_sent_back_as_a_message(server: Any) -> None:
    client = server.openai
    answer = client.chat.completions.create(model="tiny", messages=CHAT["messages"], max_tokens=1)
    messages = [answer.choices[0].message.model_dump()]
    assert client.chat.completions.create(model="tiny", messages=messages, max_tokens=1).usage.completion_tokens == 1


def test_an_unknown_model_is_not_found(server: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="not served here") as refused:
        server.openai.chat.completions.create(**CHAT | {"model": "other"})
    assert refused.value.code == "model_not_found"
    assert server.http.get("/v1/models/other").status_code == 404


@pytest.mark.parametrize("fields", [{"max_tokens": 40}, {"prompt": [5] * 32}, {"prompt": "word " * 2000}])
def test_what_does_not_fit_the_context_is_refused(server: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 32") as refused:
        server.openai.completions.create(**TEXT | fields)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("prompt", ["", [], [[]], [256], [-1], ["a", "b"], [[1], [2]], None, 5, [True], [1.0]])
def test_a_prompt_that_is_none_is_refused(server: Any, prompt: Any) -> None:
    assert post(server, "/v1/completions", TEXT | {"prompt": prompt}).status_code == 400


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b"{" * 5000, b"[" * 100_000, b'{"model": NaN}', b"9" * 5000],
)
def test_what_is_no_object_is_refused(server: Any, body: bytes) -> None:
    response = post(server, "/v1/chat/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_half_a_surrogate_is_refused(server: Any) -> None:
    body = b'{"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "\\ud800"}]}'
    assert post(server, "/v1/chat/completions", body).status_code == 400


def test_a_large_body_is_refused_whether_declared_or_not(server: Any) -> None:
    large = json.dumps(CHAT | {"user": "a" * (1 << 20)}).encode()
    assert post(server, "/v1/chat/completions", large).status_code == 413
    headers = {"Content-Type": "application/json"}
    pieces = (large[start : start + 65536] for start in range(0, len(large), 65536))
    assert server.http.post("/v1/chat/completions", content=pieces, headers=headers).status_code == 413


def test_a_body_of_another_type_is_refused(server: Any) -> None:
    response = server.http.post(
        "/v1/chat/completions", content=json.dumps(CHAT), headers={"Content-Type": "text/plain"}
    )
    assert response.status_code == 400


def test_unknown_places_and_methods_are_told_alike(server: Any) -> None:
    assert server.http.get("/v1/nowhere").json()["error"]["message"] == "GET /v1/nowhere: not found"
    assert server.http.get("/v1/chat/completions").status_code == 405
    assert server.http.get("/v1/receipts?after=x", headers={"Authorization": "Bearer auditors-key"}).status_code == 400


def test_a_key_is_asked_for_where_there_is_one(serving: Any, language_model: Any) -> None:
    with serving(language_model, keys=frozenset({"sésame"})) as server:
        for wrong in ({}, {"Authorization": "Bearer other"}, {"Authorization": b"Basic s\xc3\xa9same"}):
            response = server.http.post("/v1/completions", json=TEXT, headers=wrong)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        right = {"Authorization": "Bearer sésame".encode()}
        assert server.http.post("/v1/completions", json=TEXT, headers=right).status_code == 200
        assert server.http.get("/v1/models").status_code == 401


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_no_field_makes_the_server_fail(server: Any, path: str, body: dict[str, Any]) -> None:
    draw = random.Random(1)
    fields = ["model", "messages", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop"]
    fields += ["n", "stream", "stream_options", "logprobs", "tally_nonce", "repetition_penalty", "tools", "metadata"]
    for field in fields:
        for value in ODD:
            changed = body | {field: value} | ({draw.choice(fields): draw.choice(ODD)} if draw.random() < 0.3 else {})
            response = post(server, path, changed)
            assert response.status_code in (200, 400, 404), (changed, response.text)
    assert post(server, path, body).status_code == 200


def test_no_bytes_make_the_server_fail(server: Any) -> None:
    draw = random.Random(2)
    whole = json.dumps(CHAT).encode()
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        response = post(server, "/v1/chat/completions", bytes(damaged[: draw.randint(1, len(damaged))]))
        assert response.status_code in (200, 400, 404), (damaged, response.text)

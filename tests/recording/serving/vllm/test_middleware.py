"""Receipts in the responses of vLLM's own server, which here answers with what vLLM 0.32 answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.answers.reading import read_responses
from tallystick.formats.receipt import Receipt, SignedReceipt, Tokens
from tallystick.formats.signing import SigningKey, verify_receipt_signature
from tests.recording.serving.vllm.conftest import RECORDED, Running, Serving, Workers, failure_of, state_of

KEY = SigningKey(bytes(range(32)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("provider")
    KEY.write(folder / "key")
    (folder / "auditors").write_text("auditors-key\n")
    return folder


@pytest.fixture(scope="module")
def variables(folder: Path) -> dict[str, str]:
    return {"TALLY_KEY": str(folder / "key"), "TALLY_AUDITOR_KEYS": str(folder / "auditors")}


@pytest.fixture(scope="module")
def server(serving_vllm: Serving, variables: dict[str, str], folder: Path) -> Iterator[Running]:
    defaults = {"temperature": 0.6, "top_k": 7}
    with serving_vllm(**variables, TALLY_JOURNAL=str(folder / "journal"), defaults=defaults) as running:
        yield running


def checked(value: Any) -> Receipt:
    signed = SignedReceipt.from_json(value, "receipt")
    verify_receipt_signature(signed)
    assert signed.key == KEY.public
    return signed.receipt


def chunks_of(text: str) -> list[dict[str, Any]]:
    events = [event[6:] for event in text.split("\n\n") if event.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def recorded_chunks(name: str) -> list[dict[str, Any]]:
    return chunks_of("".join(RECORDED[name]["parts"]))


def without(chunk: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in chunk.items() if name not in names}


def recorded_answer(name: str) -> tuple[dict[str, Any], list[int]]:
    """The recorded response, and the tokens of its prompt."""
    body = json.loads("".join(RECORDED[name]["parts"]))
    return body, body.get("prompt_token_ids") or body["choices"][0]["prompt_token_ids"]


@pytest.mark.parametrize(("name", "finish"), [("chat", "length"), ("stop text", "stop"), ("end token", "end")])
def test_a_response_gets_the_receipt_of_its_tokens(server: Running, name: str, finish: str) -> None:
    told, prompt = recorded_answer(name)
    response = server.post(name, tally_nonce="beef")
    body = response.json()
    receipt = checked(body["receipt"])
    assert receipt.request.id == body["id"]
    assert receipt.request.nonce == "beef"
    assert receipt.request.prompt == Tokens.of(prompt)
    assert receipt.answer.tokens == Tokens.of(told["choices"][0]["token_ids"])
    assert receipt.answer.finish == finish
    assert receipt.request.max_tokens == RECORDED[name]["request"]["max_tokens"]
    assert response.headers["Tally-Receipt"] == receipt.identity
    assert response.headers["X-Request-Id"] == body["id"]
    assert without(body, "id", "receipt", "prompt_token_ids") == without(told, "id", "prompt_token_ids")
    assert body["prompt_token_ids"] == prompt


def test_the_receipt_states_the_engine_and_fingerprints_of_its_rows(server: Running) -> None:
    body = server.post("chat").json()
    receipt = checked(body["receipt"])
    assert (receipt.engine.name, receipt.batch.largest) == ("vllm", 5)
    (fingerprint,) = receipt.fingerprints
    assert fingerprint.tokens == receipt.answer.tokens.count
    assert set(fingerprint.layers) <= set(server.workers.layers)
    assert server.workers.named("tally_take")[-1] == (body["id"], receipt.answer.tokens.count)


def test_vllm_is_asked_for_canonical_sampling_with_everything_said(server: Running) -> None:
    receipt = checked(server.post("chat", seed=None, temperature=None, top_k=None, tally_nonce="aa").json()["receipt"])
    asked = server.asked[-1]
    assert asked["return_token_ids"] is True
    assert "tally_nonce" not in asked
    stated = receipt.sampler.model_dump(exclude_defaults=True)
    assert stated == {"temperature": 0.6, "top_k": 7, "seed": asked["seed"]}
    own = {"tally_temperature": 0.6, "tally_top_k": 7, "tally_top_p": 1.0, "tally_min_p": 0.0}
    assert asked["vllm_xargs"] == {"tally": 1, **own}
    assert (asked["temperature"], asked["top_k"]) == (0.0, 0)  # vLLM itself has nothing to sort and to draw
    again = checked(server.post("chat", seed=None).json()["receipt"])
    assert again.sampler.seed != receipt.sampler.seed


def test_what_a_request_says_goes_before_the_model_s_own_defaults(server: Running) -> None:
    given = {"temperature": 0.0, "top_k": -1, "seed": 9, "repetition_penalty": 1.5}
    sampler = checked(server.post("chat", **given).json()["receipt"]).sampler
    assert sampler.model_dump(exclude_defaults=True) == {"temperature": 0.0, "seed": 9, "repetition_penalty": 1.5}


@pytest.mark.parametrize(("name", "kind"), [("chat of two", "chatcmpl"), ("text of two", "cmpl")])
def test_each_of_several_choices_has_its_receipt(server: Running, name: str, kind: str) -> None:
    told, _ = recorded_answer(name)
    body = server.post(name).json()
    receipts = [checked(each) for each in body["receipts"]]
    assert body["receipt"] == body["receipts"][0]
    assert [each.request.id for each in receipts] == [f"{body['id']}-0", f"{body['id']}-1"]
    assert [each.answer.tokens for each in receipts] == [Tokens.of(each["token_ids"]) for each in told["choices"]]
    assert [each.sampler.seed for each in receipts] == [3, 4]
    assert body["id"].startswith(f"{kind}-")
    inside = body["id"] + "-0" * (kind == "cmpl")
    assert [name for name, _ in server.workers.named("tally_take")[-2:]] == [f"0_{inside}", f"1_{inside}"]
    assert [each.number for each in read_responses(body)] == [0, 1]
    asked = server.asked[-1]
    assert asked["vllm_xargs"] == {"tally": 1}  # vLLM gives one greedy choice only
    assert asked["temperature"] == receipts[0].sampler.temperature


@pytest.mark.parametrize("name", ["stream", "stream of two", "text stream", "stop text stream"])
def test_a_stream_has_the_receipts_in_its_last_chunk_and_is_not_changed_before(server: Running, name: str) -> None:
    response = server.post(name)
    *others, last = chunks_of(response.text)
    *before, told = recorded_chunks(name)
    assert [without(each, "id") for each in others] == [without(each, "id") for each in before]
    assert without(last, "id", "receipt", "receipts", "prompt_token_ids") == without(told, "id")
    receipts = [checked(each) for each in last.get("receipts", [last["receipt"]])]
    for number, receipt in enumerate(receipts):
        choices = [choice for each in [*before, told] for choice in each["choices"] if choice["index"] == number]
        assert receipt.answer.tokens == Tokens.of([token for each in choices for token in each.get("token_ids") or ()])
    assert response.headers["X-Request-Id"] == last["id"]


def test_the_end_of_a_stream_by_a_stop_text_is_stated(server: Running) -> None:
    assert checked(chunks_of(server.post("stop text stream").text)[-1]["receipt"]).answer.finish == "stop"


@pytest.mark.parametrize("name", ["too long", "refused by the plugin"])
def test_an_error_of_vllm_is_passed_on_unchanged(server: Running, name: str) -> None:
    before = checked(server.post("chat").json()["receipt"]).sequence
    response = server.post(name)
    assert response.status_code == RECORDED[name]["status"] == 400
    assert response.text == "".join(RECORDED[name]["parts"])
    assert checked(server.post("chat").json()["receipt"]).sequence == before + 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "cut"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 2}, "response_format"),
        ({"vllm_xargs": {"other": 1}}, "vllm_xargs"),
        ({"n": 65}, "n"),
        ({"n": True}, "n"),
        ({"seed": -1}, "seed"),
        ({"temperature": 0.001}, "temperature"),
        ({"temperature": "hot"}, None),
        ({"tally_nonce": "no"}, "tally_nonce"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
    ],
)
def test_a_request_that_can_have_no_receipt_is_refused_with_one_line(
    server: Running, changes: dict[str, Any], field: str | None
) -> None:
    count = len(server.asked)
    response = server.post("chat", **changes)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", field)
    assert "\n" not in error["message"]
    assert len(server.asked) == count


@pytest.mark.parametrize(
    "path",
    ["/v1/responses", "/v1/messages", "/invocations", "/inference/v1/generate", "/v1/chat/completions/batch"],
)
def test_no_other_way_of_asking_goes_without_a_receipt_in_silence(server: Running, path: str) -> None:
    response = server.http.post(path, json={"model": "smol", "input": "hi"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "no_receipt")
    assert "/v1/chat/completions" in response.json()["error"]["message"]


def test_a_least_length_is_stated_with_the_tokens_that_it_holds_back(server: Running, language_model: Any) -> None:
    receipt = checked(server.post("chat", min_tokens=2, stop_token_ids=[77, 3]).json()["receipt"])
    ends = sorted({*language_model.end_tokens, 3, 77})
    assert (receipt.sampler.min_tokens, receipt.sampler.end_token_ids) == (2, tuple(ends))
    assert server.asked[-1]["vllm_xargs"]["tally_end_token_ids"] == ",".join(
        map(str, sorted(language_model.end_tokens))
    )
    assert (server.asked[-1]["min_tokens"], server.asked[-1]["stop_token_ids"]) == (2, [77, 3])


def test_a_token_that_the_customer_names_stops_an_answer_and_is_no_end_of_the_model(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = RECORDED["end token"]
    body = json.loads(case["parts"][0])
    last = body["choices"][0]["token_ids"][-1]
    body["choices"][0]["stop_reason"] = last
    monkeypatch.setitem(RECORDED, "stop token", case | {"parts": [json.dumps(body)]})
    finish = [
        checked(server.post("stop token", **changes).json()["receipt"]).answer.finish
        for changes in ({"stop_token_ids": [last]}, {"stop_token_ids": [last + 1]}, {})
    ]
    assert finish == ["stop", "end", "end"]


PARAMETERS = {"type": "object", "properties": {"at": {"type": "integer"}}}
CUT = {"type": "function", "function": {"name": "cut", "description": "Cuts.", "parameters": PARAMETERS}}
SAID = 'So: <tool_call>\n{"name": "cut", "arguments": {"at": 3}}\n</tool_call>'
DONE = "data: [DONE]\n\n"


def called(language_model: Any, text: str, is_stream: bool) -> dict[str, Any]:
    """What vLLM sends for a chat with tools that it is told not to read calls from."""
    case = RECORDED["stream" if is_stream else "end token"]
    prompt = language_model.encode_chat(case["request"]["messages"], json.dumps([CUT]))
    shared = {"id": "chatcmpl-REQUEST", "model": "smol", "prompt_token_ids": prompt}
    if not is_stream:
        message = {"role": "assistant", "content": text, "tool_calls": []}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [5, 6, 7]}
        return case | {"parts": [json.dumps(shared | {"object": "chat.completion", "choices": [choice]})]}
    pieces = [text[place : place + 7] for place in range(0, len(text), 7)]
    deltas = [{"delta": {"content": piece}, "token_ids": [5], "finish_reason": None} for piece in pieces]
    chunks = [{"delta": {"role": "assistant", "content": ""}}, *deltas, {"delta": {}, "finish_reason": "stop"}]
    events = [f"data: {json.dumps(shared | {'choices': [{'index': 0, **each}]})}\n\n" for each in chunks]
    return case | {"parts": [*events, DONE]}


@pytest.mark.parametrize("is_stream", [False, True])
def test_calls_are_read_from_the_text_as_a_verifier_reads_them(
    server: Running, language_model: Any, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    monkeypatch.setitem(RECORDED, "calls", called(language_model, SAID, is_stream))
    response = server.post("calls", tools=[CUT], tool_choice="auto")
    asked = server.asked[-1]
    assert (asked["tools"], asked["tool_choice"]) == ([CUT], "none")
    body = chunks_of(response.text)[-1] if is_stream else response.json()
    message = body["choices"][0]["delta" if is_stream else "message"]
    [call] = message["tool_calls"]
    assert (call["function"], message["content"]) == ({"name": "cut", "arguments": '{"at": 3}'}, "So:")
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert checked(body["receipt"]).answer.finish == "end"
    assert "<tool_call>" not in response.text


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_text_without_calls_is_sent_as_it_is(
    server: Running, language_model: Any, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    monkeypatch.setitem(RECORDED, "calls", called(language_model, "Nothing to cut.", is_stream))
    response = server.post("calls", tools=[CUT])
    [read] = read_responses(chunks_of(response.text)[-1] if is_stream else response.json())
    assert (read.choice.content, read.choice.calls, read.choice.finish_reason) == ("Nothing to cut.", (), "stop")


def test_a_prompt_that_shows_the_tools_otherwise_gets_no_receipt(
    server: Running, language_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = called(language_model, SAID, is_stream=False)
    body = json.loads(case["parts"][0])
    body["prompt_token_ids"][0] += 1
    monkeypatch.setitem(RECORDED, "calls", case | {"parts": [json.dumps(body)]})
    response = server.post("calls", tools=[CUT])
    assert response.status_code == 500
    assert "shows the tools otherwise" in response.json()["error"]["message"]
    assert server.post("chat").status_code == 200


def test_a_demanded_call_is_a_schema_of_the_logits_processor(
    server: Running, language_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `grammar`")
    monkeypatch.setitem(RECORDED, "calls", called(language_model, '{"at": 3}', is_stream=False))
    named = {"type": "function", "function": {"name": "cut"}}
    body = server.post("calls", tools=[CUT], tool_choice=named).json()
    assert body["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "cut", "arguments": '{"at": 3}'}
    assert checked(body["receipt"]).sampler.grammar.kind == "tool_choice"
    assert json.loads(server.asked[-1]["vllm_xargs"]["tally_schema"]) == PARAMETERS


def test_a_schema_goes_to_the_logits_processor_and_is_stated(server: Running) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `grammar`")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    receipt = checked(server.post("chat", response_format=wanted).json()["receipt"])
    assert (receipt.sampler.grammar.kind, receipt.sampler.grammar.library) == ("json_schema", "llguidance")
    asked = server.asked[-1]
    assert json.loads(asked["vllm_xargs"]["tally_schema"]) == schema
    assert "response_format" not in asked
    bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "wizard"}}}
    refused = server.post("chat", response_format=bad)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": ["a"]},
        {"prompt": [1, 2]},
        {"echo": False, "tools": [], "tool_choice": "auto", "skip_special_tokens": True, "vllm_xargs": None},
        {"n": 1, "seed": 0, "temperature": 0.01},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
)
def test_the_same_fields_at_values_without_effect_are_accepted(server: Running, changes: dict[str, Any]) -> None:
    assert server.post("chat", **changes).status_code == 200


@pytest.mark.parametrize("body", [b"{nonsense", b"[1]", b"[" * 500])
def test_a_body_that_is_no_object_is_left_to_vllm(server: Running, body: bytes) -> None:
    response = server.http.post("/v1/completions", content=body)
    assert (response.status_code, response.json()) == (400, {"error": "vLLM's own"})


def test_other_requests_pass_and_get_no_receipts(server: Running) -> None:
    assert server.http.get("/v1/models").json() == {"data": ["smol"]}


def test_receipts_are_served_by_request_and_by_number(server: Running) -> None:
    body = server.post("chat of two").json()
    assert server.http.get(f"/v1/receipts/{body['id']}-1").json() == body["receipts"][1]
    assert server.http.get("/v1/receipts/other").status_code == 404
    assert server.http.get("/v1/receipts?after=0").status_code == 401
    listed = server.http.get("/v1/receipts?after=0", headers={"Authorization": "Bearer auditors-key"})
    receipts = [checked(json.loads(line)) for line in listed.text.splitlines()]
    assert [each.sequence for each in receipts] == list(range(1, len(receipts) + 1))
    assert all(b.previous == a.identity for a, b in pairwise(receipts))


def test_the_key_is_served_with_the_model_card(server: Running, language_model: Any) -> None:
    told = server.http.get("/v1/key").json()
    assert told == {"key": KEY.public, "model": language_model.card.identity, "card": language_model.card.to_json()}


def test_customers_keys_are_those_of_vllm(serving_vllm: Serving, variables: dict[str, str]) -> None:
    with serving_vllm(**variables, args={"api_key": ["customer"]}) as running:
        assert running.post("chat").json() == {"error": "vLLM's own"}
        assert running.workers.named("tally_take") == []
        assert running.http.get("/v1/receipts/any").status_code == 401
        allowed = {"Authorization": "Bearer customer"}
        case = RECORDED["chat"]
        body = running.http.post(case["path"], json=case["request"], headers={"Case": "chat", **allowed}).json()
        assert running.http.get(f"/v1/receipts/{body['id']}", headers=allowed).json() == body["receipt"]


def test_a_private_receipt_has_no_token_ids(serving_vllm: Serving, variables: dict[str, str]) -> None:
    with serving_vllm(**variables, TALLY_PRIVATE="1") as running:
        receipt = checked(running.post("chat").json()["receipt"])
    assert receipt.answer.tokens.ids is receipt.request.prompt.ids is None
    assert receipt.answer.tokens.count > 0


def test_without_fingerprints_only_the_batch_is_asked_for(serving_vllm: Serving, variables: dict[str, str]) -> None:
    with serving_vllm(**variables, TALLY_LAYERS="none") as running:
        receipt = checked(running.post("chat").json()["receipt"])
        assert (receipt.fingerprints, receipt.batch.largest) == ((), 5)
        assert running.workers.watched == []


def test_layers_that_vllm_does_not_show_are_left_out(
    serving_vllm: Serving, variables: dict[str, str], model_directory: Path, language_model: Any
) -> None:
    final = language_model.card.layers
    with serving_vllm(Workers(str(model_directory), layers=(final,)), **variables) as running:
        (fingerprint,) = checked(running.post("chat").json()["receipt"]).fingerprints
    assert fingerprint.layers == (final,)


def test_a_journal_goes_on_with_the_next_number(
    serving_vllm: Serving, variables: dict[str, str], tmp_path: Path
) -> None:
    for expected in (1, 2):
        with serving_vllm(**variables, TALLY_JOURNAL=str(tmp_path)) as running:
            assert checked(running.post("chat").json()["receipt"]).sequence == expected


def test_missing_rows_are_an_error_and_no_receipt(
    serving_vllm: Serving, variables: dict[str, str], model_directory: Path
) -> None:
    with serving_vllm(Workers(str(model_directory), held=1), **variables) as running:
        response = running.post("chat")
        assert response.status_code == 500
        assert "rows are missing" in response.json()["error"]["message"]
        assert running.workers.named("tally_drop") == [(running.workers.named("tally_take")[0][0],)]
        *others, last = chunks_of(running.post("stream").text)
        assert len(others) == len(recorded_chunks("stream"))
        assert "rows are missing" in last["error"]["message"]
        assert not any("receipt" in each for each in [*others, last])


def test_a_stream_that_its_client_leaves_gets_a_receipt_of_what_was_sent(
    serving_vllm: Serving, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = RECORDED["stream"] | {"parts": RECORDED["stream"]["parts"][:2], "hangs": True}
    monkeypatch.setitem(RECORDED, "left", case)
    with serving_vllm(**variables) as running:
        dropped = threading.Event()
        monkeypatch.setattr(running.workers, "tally_drop", lambda _: dropped.set())
        with running.http.stream("POST", case["path"], json=case["request"], headers={"Case": "left"}) as response:
            name = response.headers["X-Request-Id"]
            arrived = response.iter_lines()
            while '"token_ids"' not in next(arrived).replace("prompt_token_ids", ""):
                pass
        assert dropped.wait(20)
        receipt = checked(running.http.get(f"/v1/receipts/{name}").json())
    assert receipt.answer.finish == "cancelled"
    assert receipt.answer.tokens.count == 1


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"api_server_count": 2}, "--api-server-count"),
        ({"data_parallel_size": 2}, "--data-parallel-size"),
        ({"chat_template": "other.jinja"}, "--chat-template"),
        ({"tokenizer": "other"}, "--tokenizer"),
        ({"reasoning_parser": "deepseek"}, "--reasoning-parser"),
    ],
)
def test_a_server_whose_receipts_would_not_be_true_does_not_start(
    model_directory: Path, args: dict[str, Any], named: str
) -> None:
    line = failure_of(state_of(Workers(str(model_directory)), args, {}))
    assert line is not None
    assert named in line
    assert "\n" not in line


def test_the_same_server_with_harmless_options_starts(model_directory: Path) -> None:
    args = {"api_server_count": 1, "data_parallel_size": 1, "chat_template": None, "tokenizer": str(model_directory)}
    assert failure_of(state_of(Workers(str(model_directory)), args, {})) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("TALLY_KEY", "nowhere"), ("TALLY_PRIVATE", "yes"), ("TALLY_LAYERS", "all"), ("TALLY_JOURNAL", "journal")],
)
def test_a_wrong_variable_ends_the_start(
    model_directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    line = failure_of(state_of(Workers(str(model_directory)), {}, {}))
    assert line is not None
    assert name in line

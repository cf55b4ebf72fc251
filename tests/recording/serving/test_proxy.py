"""Receipts by a proxy: before our own server, before one that tells no tokens, and before one that misbehaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import read_response, read_responses
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.stream import verify_stream
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.audits.answers.verify import verification_of
from tallystick.core.canonical_json import INTEGER_MAX, encode
from tallystick.core.digests import digest
from tallystick.core.http.server import bind, served
from tallystick.formats.claims import named_root
from tallystick.formats.receipt import Receipt, SignedReceipt, Tokens
from tallystick.formats.signing import SigningKey, verify_receipt_signature
from tallystick.recording.receipts import ReceiptChain
from tallystick.recording.serving.application import ServerOptions
from tallystick.recording.serving.exchanges import ModelTokenizer, ReceiptBook
from tallystick.recording.serving.proxy import Upstream, create_proxy

KEY = SigningKey(bytes(range(32)))
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "halves"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 6, "seed": 4}
ROOT = digest("model", b"promised")
KNOWN = {"model", "messages", "max_tokens", "seed", "stream", "stream_options", "tools", "user"}
AUDITOR = {"Authorization": "Bearer auditors-key"}
Proxying = Callable[..., AbstractContextManager["Proxied"]]


class Proxied:
    """A running proxy and clients of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=120)
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key="customer", max_retries=0)

    def receipts(self) -> list[Receipt]:
        lines = self.http.get("/v1/receipts?after=0", headers=AUDITOR).content.splitlines()
        return [checked(SignedReceipt.from_bytes(line, "line").to_json()) for line in lines]


def checked(value: Any) -> Receipt:
    signed = SignedReceipt.from_json(value, "receipt")
    verify_receipt_signature(signed)
    assert signed.key == KEY.public
    return signed.receipt


@pytest.fixture(scope="session")
def proxying() -> Proxying:
    @contextmanager
    def proxy(url: str, tokenizer: Any = None, journal: Path | None = None, **named: Any) -> Iterator[Proxied]:
        chain = ReceiptChain(named.pop("root", ROOT), KEY, journal, private=named.pop("private", False))
        options = ServerOptions("tiny", auditors=frozenset({"auditors-key"}))
        app = create_proxy(Upstream(url, tokenizer=tokenizer, **named), chain, ReceiptBook(journal), options)
        with served(app) as address:
            running = Proxied(address)
            yield running
            running.http.close()
            running.openai.close()

    return proxy


def stranger() -> FastAPI:
    """A server of the API that knows nothing of receipts or token ids, and refuses fields that it does not know."""
    app = FastAPI()
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}

    def chunk(choices: list[Any], **more: Any) -> bytes:
        return b"data: " + json.dumps({"id": "upstream-1", "choices": choices, **more}).encode() + b"\n\n"

    async def chunks(breaks: bool, has_usage: bool) -> AsyncIterator[bytes]:
        yield b": a comment\n\n"
        yield chunk([{"index": 0, "delta": {"role": "assistant", "content": "wo"}, "finish_reason": None}])
        if breaks:
            raise OSError("broken")
        yield chunk([{"index": 0, "delta": {"content": "od"}, "finish_reason": None}])
        yield chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        if has_usage:
            yield chunk([], usage=usage)
        yield b"data: [DONE]\n\n"

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = await request.json()
        if unknown := set(asked) - KNOWN:
            return JSONResponse({"error": {"message": f"unknown: {', '.join(unknown)}"}}, 400)
        if asked.get("user") == "slow down":
            return JSONResponse({"error": {"message": "slow down"}}, 429, {"Retry-After": "7"})
        if asked.get("user") == "nonsense":
            return Response(b"{nonsense", media_type="application/json")
        if asked.get("stream"):
            events = chunks(asked.get("user") == "break", bool(asked.get("stream_options")))
            return StreamingResponse(events, media_type="text/event-stream")
        message = {"role": "assistant", "content": "wood"} | ({"tool_calls": [{}]} if asked.get("tools") else {})
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return JSONResponse({"id": "upstream-1", "choices": choices, "usage": usage, "hidden": "kept"})

    @app.get("/v1/echo")
    async def echo(request: Request) -> Response:
        told = {"Keep-Alive": "5", "Connection": "X-Secret", "X-Secret": "s", "X-Kept": "k"}
        return JSONResponse(dict(request.headers), headers=told)

    return app


@pytest.fixture(scope="module")
def strange() -> Iterator[str]:
    with served(stranger()) as url:
        yield url


@pytest.fixture(scope="module")
def proxy(proxying: Proxying, strange: str) -> Iterator[Proxied]:
    with proxying(strange) as running:
        yield running


def test_token_ids_of_our_own_server_are_in_the_receipt(proxying: Proxying, server: Any) -> None:
    direct = server.openai.chat.completions.create(**CHAT)
    with proxying(server.url) as proxy:
        response = proxy.openai.chat.completions.create(**CHAT, extra_body={"tally_nonce": "beef"})
        receipt = checked(response.receipt)
    assert receipt.request.prompt == Tokens.of(direct.prompt_token_ids)
    assert receipt.answer.tokens == Tokens.of(direct.choices[0].token_ids)
    assert (receipt.request.nonce, receipt.request.id, receipt.model) == ("beef", response.id, ROOT)
    assert (receipt.engine.name, receipt.engine.version) == ("proxy", "token ids by the server")
    assert (receipt.sampler.seed, receipt.answer.finish, receipt.fingerprints) == (4, "length", ())
    assert SignedReceipt.from_json(response.upstream_receipt, "receipt").key == server.service.issuer.key.public


@pytest.mark.parametrize("has_usage", [True, False])
def test_a_stream_carries_the_receipt_in_its_last_chunk(proxying: Proxying, server: Any, has_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if has_usage else {}
    with proxying(server.url) as proxy:
        whole = proxy.openai.chat.completions.create(**CHAT)
        *chunks, last = proxy.openai.chat.completions.create(**CHAT, stream=True, **options)
    assert bool(last.choices) is not has_usage
    assert checked(last.receipt).answer == checked(whole.receipt).answer
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == whole.choices[0].message.content


def test_the_prompt_is_made_again_by_a_tokenizer_and_the_answer_bound_as_text(
    proxying: Proxying, strange: str, language_model: Any
) -> None:
    with proxying(strange, ModelTokenizer(language_model)) as proxy:
        receipt = checked(proxy.openai.chat.completions.create(**CHAT).receipt)
    assert receipt.engine.version == "prompt made again, digest of the answer's text"
    assert receipt.request.prompt == Tokens.of(language_model.encode_chat(HELLO))
    assert receipt.answer.tokens == Tokens(count=3, digest=digest("blob", b"wood"), over="text")


ASKED: list[dict[str, Any]] = [
    {"seed": 4},
    {"seed": 4, "temperature": 0.8, "top_p": 0.9},
    {"seed": 4, "n": 2, "tally_nonce": "beef"},
    {"temperature": 0},
    {"temperature": 0, "stop": ["e"]},
    {"seed": INTEGER_MAX - 8},
    {},
]


@pytest.mark.parametrize("change", ASKED, ids=str)
@pytest.mark.parametrize("behind", ["server", "strange"])
@pytest.mark.parametrize("has_model", [True, False])
def test_an_honest_proxy_is_rejected_by_nobody_and_shows_nothing_that_it_did_not_see(
    proxying: Proxying,
    server: Any,
    strange: str,
    language_model: Any,
    change: dict[str, Any],
    behind: str,
    has_model: bool,
) -> None:
    root = language_model.card.identity if has_model else named_root("tiny")
    tokenizer = ModelTokenizer(language_model) if has_model else None
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 6, **change}
    if behind == "strange":
        body = {name: each for name, each in body.items() if name in {*KNOWN, "tally_nonce"} - {"tools", "user"}}
    with proxying(server.url if behind == "server" else strange, tokenizer, root=root) as proxy:
        response = proxy.http.post("/v1/chat/completions", json=body).json()
    asked = ExpectedRequest.from_body(body)
    subjects = [ReceiptContext(each, asked) for each in read_responses(response)]
    for subject in subjects:
        report = verification_of(subject, language_model, ReceiptPolicy()).report(2)
        assert report.outcome == "inconclusive", report.verdict.objections
        assert report.answers["same precision"] == report.answers["same model"] == "unknown"
        whole = verify_stream(subjects, language_model, ReceiptPolicy(complete=True), bytes(32))
    assert whole.outcome == "inconclusive", whole.verdict.objections


@pytest.mark.parametrize(("temperature", "outcome"), [(0, "accepted"), (0.8, "inconclusive")])
def test_what_a_proxy_passed_on_is_accepted_as_far_as_the_policy_asks(
    proxying: Proxying, server: Any, language_model: Any, temperature: float, outcome: str
) -> None:
    body = CHAT | {"temperature": temperature}
    with proxying(server.url, root=language_model.card.identity) as proxy:
        response = read_response(proxy.http.post("/v1/chat/completions", json=body).json())
    sampler = SamplerRule(dishonest=0.9)
    policy = ReceiptPolicy(kv_caches=("native", "unknown"), demands=(), sampler=sampler)
    subject = ReceiptContext(response, ExpectedRequest.from_body(body))
    assert verification_of(subject, language_model, policy).report(2).outcome == outcome
    promised = policy.model_copy(update={"sampler": sampler.model_copy(update={"form": "gumbel"})})
    assert verification_of(subject, language_model, promised).report(2).outcome == "accepted"


def test_a_proxy_is_bound_to_the_text_that_it_passed_on(proxying: Proxying, strange: str, language_model: Any) -> None:
    with proxying(strange, root=language_model.card.identity) as proxy:
        told = proxy.http.post("/v1/chat/completions", json=CHAT).json()
    told["choices"][0]["message"]["content"] = "iron"
    report = verification_of(ReceiptContext(read_response(told)), language_model, ReceiptPolicy()).report(2)
    assert [each.name for each in report.verdict.objections] == ["tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_tokenizer_the_text_is_bound(proxy: Proxied, stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    response = proxy.openai.chat.completions.create(**CHAT, **options, extra_body={"tally_nonce": "aa"})
    receipt = checked((list(response)[-1] if stream else response).receipt)
    assert receipt.engine.version == "digest of the text"
    assert receipt.request.prompt == Tokens(count=7, digest=digest("blob", encode({"messages": HELLO})), over="text")
    assert receipt.answer.tokens == Tokens(count=3, digest=digest("blob", b"wood"), over="text")
    assert (receipt.answer.finish, receipt.request.nonce) == ("end", "aa")


def test_the_rest_of_a_response_stays_as_it_was(proxy: Proxied, strange: str) -> None:
    through = proxy.http.post("/v1/chat/completions", json=CHAT)
    direct = httpx.post(f"{strange}/v1/chat/completions", json=CHAT, timeout=120).json()
    assert {name: value for name, value in through.json().items() if name != "receipt"} == direct
    assert through.headers["tally-receipt"] == checked(through.json()["receipt"]).identity


def test_errors_of_the_server_behind_pass_through(proxying: Proxying, strange: str) -> None:
    with proxying(strange) as proxy:
        with pytest.raises(openai.RateLimitError, match="slow down") as slowed:
            proxy.openai.chat.completions.create(**CHAT, user="slow down")
        assert slowed.value.response.headers["retry-after"] == "7"
        with pytest.raises(openai.BadRequestError, match="unknown: wizardry"):
            proxy.openai.chat.completions.create(**CHAT, extra_body={"wizardry": 1})
        assert proxy.http.get("/v1/nowhere").status_code == 404
        assert proxy.http.post("/v1/chat/completions", json=CHAT | {"user": "nonsense"}).status_code == 502
        assert proxy.receipts() == []


def test_what_is_no_text_or_another_model_gets_no_receipt(proxy: Proxied) -> None:
    for change in ({"tools": [{}]}, {"model": "another"}):
        response = proxy.http.post("/v1/chat/completions", json=CHAT | change)
        assert (response.status_code, response.json()["choices"][0]["message"]["content"]) == (200, "wood")
        assert "receipt" not in response.json()


def test_a_stream_that_breaks_off_is_told_and_numbered(proxying: Proxying, strange: str) -> None:
    with proxying(strange) as proxy:
        events = proxy.http.post("/v1/chat/completions", json=CHAT | {"stream": True, "user": "break"}).text
        assert '"code":"upstream_unreachable"' in events
        [receipt] = proxy.receipts()
    assert (receipt.answer.finish, receipt.answer.tokens.digest) == ("cancelled", digest("blob", b"wo"))


def test_headers_of_one_connection_stay_on_it(proxy: Proxied) -> None:
    sent = {"Authorization": "Bearer customer", "Connection": "X-Local", "X-Local": "1", "TE": "trailers", "X-Far": "2"}
    response = proxy.http.get("/v1/echo", headers=sent)
    assert response.headers["x-kept"] == "k"
    assert not {"x-secret", "keep-alive"} & set(response.headers)
    assert (response.json()["authorization"], response.json()["x-far"]) == ("Bearer customer", "2")
    assert not {"x-local", "te"} & set(response.json())


def test_a_server_that_is_not_there_is_told(proxying: Proxying) -> None:
    with bind("127.0.0.1", 0) as nobody:
        port = nobody.getsockname()[1]
    with proxying(f"http://127.0.0.1:{port}") as proxy:
        response = proxy.http.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_unreachable")


def test_a_server_that_is_silent_is_told(proxying: Proxying) -> None:
    with bind("127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with proxying(url, silence_seconds=0.2) as proxy:
            response = proxy.http.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"\xff", json.dumps(CHAT | {"tally_nonce": 5}).encode(), json.dumps(CHAT | {"top_k": "x"}).encode()],
)
def test_what_no_receipt_could_state_is_refused(proxy: Proxied, body: bytes) -> None:
    assert proxy.http.post("/v1/chat/completions", content=body).status_code == 400


@pytest.mark.parametrize("path", ["/v1/../admin", "/v1/%2e%2e/admin", "/admin"])
def test_only_the_api_is_forwarded(proxy: Proxied, path: str) -> None:
    request = proxy.http.build_request("GET", "/")
    request.url = request.url.copy_with(raw_path=path.encode())
    assert proxy.http.send(request).status_code in (400, 404)


def test_numbers_go_on_after_a_restart_and_private_receipts_hold_no_tokens(
    proxying: Proxying, server: Any, journal: Path
) -> None:
    for number in (1, 2):
        with proxying(server.url, journal=journal, private=True) as proxy:
            receipt = checked(proxy.openai.chat.completions.create(**CHAT).receipt)
            assert (receipt.sequence, receipt.answer.tokens.ids) == (number, None)
            assert [each.sequence for each in proxy.receipts()] == list(range(1, number + 1))
    assert receipt.previous is not None

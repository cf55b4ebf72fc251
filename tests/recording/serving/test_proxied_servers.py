"""A proxy before other servers: bodies in the form that each documents, from an honest answer of the tiny model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI, Request

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import read_response
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.audits.answers.verify import verification_of
from tallystick.core.http.server import served
from tallystick.formats.signing import SigningKey
from tallystick.recording.generation import generate_plain
from tallystick.recording.receipts import ReceiptChain
from tallystick.recording.serving.application import ServerOptions
from tallystick.recording.serving.exchanges import ModelTokenizer, ReceiptBook
from tallystick.recording.serving.proxy import Upstream, create_proxy

ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "halves"}],
    "max_tokens": 6,
    "temperature": 0,
    "seed": 4,
    "tally_nonce": "5ca1",
}
LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
Shape = Callable[[dict[str, Any], list[int], list[int]], dict[str, Any]]


def vllm(body: dict[str, Any], prompt: list[int], answer: list[int]) -> dict[str, Any]:
    """With `return_token_ids`, which the customer's request has to ask for."""
    [choice] = body["choices"]
    body["choices"] = [choice | {"token_ids": answer, "logprobs": None, "stop_reason": None}]
    return body | {"prompt_token_ids": prompt, "prompt_logprobs": None, "kv_transfer_params": None}


def vllm_without_ids(body: dict[str, Any], prompt: list[int], answer: list[int]) -> dict[str, Any]:
    return vllm(body, prompt, answer) | {
        "prompt_token_ids": None,
        "choices": [body["choices"][0] | {"token_ids": None}],
    }


def sglang(body: dict[str, Any], prompt: list[int], answer: list[int]) -> dict[str, Any]:
    [choice] = body["choices"]
    usage = body["usage"] | {"prompt_tokens_details": None, "reasoning_tokens": 0}
    return body | {"choices": [choice | {"matched_stop": None, "logprobs": LOGPROBS}], "usage": usage}


def tgi(body: dict[str, Any], prompt: list[int], answer: list[int]) -> dict[str, Any]:
    [choice] = body["choices"]
    ended = {"length": "length", "stop": "eos_token"}[choice["finish_reason"]]
    return body | {"id": "", "choices": [choice | {"finish_reason": ended, "logprobs": None}]}


def llama_cpp(body: dict[str, Any], prompt: list[int], answer: list[int]) -> dict[str, Any]:
    timings = {"prompt_n": len(prompt), "predicted_n": len(answer), "predicted_per_second": 50.5}
    return body | {"system_fingerprint": "b8681-x", "timings": timings}


def ollama(body: dict[str, Any], prompt: list[int], answer: list[int]) -> dict[str, Any]:
    return body | {"id": "chatcmpl-917", "system_fingerprint": "fp_ollama"}


SERVERS: tuple[Shape, ...] = (vllm, vllm_without_ids, sglang, tgi, llama_cpp, ollama)


def honest(model: Any, shape: Shape, finish: str) -> tuple[FastAPI, list[dict[str, Any]]]:
    """A server that answers as the model does, and what it was asked."""
    app, seen = FastAPI(), list[dict[str, Any]]()
    prompt = model.encode_chat(ASKED["messages"])
    [found] = generate_plain(model, [prompt], ASKED["max_tokens"])
    answer = list(found.tokens)
    choice = {"index": 0, "message": {"role": "assistant", "content": model.decode(answer)}, "finish_reason": finish}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(answer), "total_tokens": len(prompt) + len(answer)}
    body = {"id": "up-1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> dict[str, Any]:
        seen.append(await request.json())
        return shape(body | {"usage": usage}, list(prompt), answer)

    return app, seen


def ask_through(app: FastAPI, language_model: Any) -> dict[str, Any]:
    import httpx

    with served(app) as url:
        chain = ReceiptChain(language_model.card.identity, SigningKey(bytes(range(32))))
        upstream = Upstream(url, tokenizer=ModelTokenizer(language_model))
        with served(create_proxy(upstream, chain, ReceiptBook(), ServerOptions("tiny"))) as address:
            body: dict[str, Any] = httpx.post(f"{address}/v1/chat/completions", json=ASKED, timeout=120).json()
    return body


@pytest.mark.parametrize("shape", SERVERS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("finish", ["length", "stop"])
def test_an_honest_answer_of_another_server_is_left_open_and_rejected_by_nobody(
    language_model: Any, shape: Shape, finish: str
) -> None:
    app, seen = honest(language_model, shape, finish)
    response = ask_through(app, language_model)
    assert [each["seed"] for each in seen] == [4]
    assert response["choices"][0].get("logprobs") == (LOGPROBS if shape is sglang else None)
    found = read_response({name: each for name, each in response.items() if each is not None})
    receipt = found.receipt.receipt
    assert (receipt.sampler.seed, receipt.request.nonce, receipt.engine.name) == (4, "5ca1", "proxy")
    assert (receipt.answer.tokens.over == "text") == (shape is not vllm)
    subject = ReceiptContext(found, ExpectedRequest.from_body(ASKED | {"return_token_ids": True}))
    report = verification_of(subject, language_model, ReceiptPolicy()).report(2)
    open_points = " ".join(map(str, report.missing))
    assert "does not say which cache was used" in open_points
    refuted = ["finish"] if (shape, finish) == (vllm, "stop") else []  # an end that the known tokens do not have
    assert [each.name for each in report.verdict.objections] == refuted
    lax = ReceiptPolicy(kv_caches=("native", "unknown"), demands=(), sampler=SamplerRule(dishonest=0.9))
    if finish == "length":
        accepted = verification_of(subject, language_model, lax).report(2).outcome
        assert accepted == ("accepted" if shape is vllm else "inconclusive")

"""`tally serve-vllm` starts vLLM itself, and the transformers verifier accepts what it answers.

Run by `make vllm`; skipped where vLLM is not installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from research.vllm.server import AUDITOR, NAME, Server, serving
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import delivered, read_response, read_responses
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.response import Response
from tallystick.audits.answers.stream import verify_stream
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.audits.answers.verify import verify_receipt
from tallystick.audits.answers.watching import read_chunks

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: `make vllm` makes its environment"),
]
OPTIONS = ("--dtype", "float32", "--max-model-len", "256", "--enforce-eager", "--max-num-batched-tokens", "48")
TEXT = {"path": "/v1/completions", "prompt": "The stick is split and the halves must match"}
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20, "stream": True},
    {"temperature": 1.2, "min_p": 0.02, "stream": True, "stream_options": {"include_usage": True}},
    {"temperature": 1.0, "repetition_penalty": 1.2},
    {"temperature": 1.0, "n": 2},
    {"temperature": 1.0, "n": 2, "stream": True},
]


@pytest.fixture(scope="module")
def directory(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of a shape that vLLM's kernels have, with the tiny model's tokenizer."""
    import shutil

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    out = tmp_path_factory.mktemp("llama")
    for path in model_directory.iterdir():
        if "token" in path.name or path.suffix == ".jinja":
            shutil.copy(path, out)
    torch.manual_seed(3)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=256, max_position_embeddings=256, initializer_range=0.2, eos_token_id=0, **shape)
    LlamaForCausalLM(config).save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def running(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("provider")
    with serving(directory, folder, 8781, OPTIONS, receipts=True) as server:
        yield server


@pytest.fixture(scope="module")
def promised(directory: Path) -> Any:
    from tallystick.engines.torch.generation.language_models import load_language_model

    return load_language_model(directory)


def asked(url: str, body: dict[str, Any]) -> tuple[Response, ...]:
    """The response, or what the chunks of a stream form together."""
    if not body.get("stream"):
        response = httpx.post(f"{url}{TEXT['path']}", json=body, timeout=300)
        assert response.status_code == 200, response.text
        return read_responses(response.json())
    with httpx.stream("POST", f"{url}{TEXT['path']}", json=body, timeout=300) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    return delivered(read_chunks("text", (("", json.loads(line[6:])) for line in lines)))


def test_answers_to_many_clients_at_once_are_those_of_the_promised_model(running: Server, promised: Any) -> None:
    plain = {"model": NAME, "prompt": TEXT["prompt"], "max_tokens": 80}
    bodies = [{**plain, **each, "seed": seed, "tally_nonce": f"{seed:02x}"} for seed, each in enumerate(SAMPLED * 3)]
    with ThreadPoolExecutor(8) as clients:
        responses = list(clients.map(lambda body: asked(running.url, body), bodies))
    outcomes = []
    for body, response in zip(bodies, responses, strict=True):
        request = ExpectedRequest.from_body(dict(body))
        for read in response:
            report = verify_receipt(read.receipt, promised, ReceiptPolicy(), request, response=read)
            outcomes.append(report.outcome)
            assert [str(each) for each in report.findings if not each.agrees and not each.advisory] == []
            assert read.receipt.receipt.engine.name == "vllm"
    assert outcomes.count("accepted") > len(outcomes) / 2  # an answer that ends early can be too short to judge


def test_the_receipts_of_a_server_follow_one_another_without_a_gap(running: Server, promised: Any) -> None:
    asked(running.url, {"model": NAME, "prompt": "The", "max_tokens": 4, "seed": 1})
    headers = {"Authorization": f"Bearer {AUDITOR}"}
    lines = httpx.get(f"{running.url}/v1/receipts?after=0", headers=headers, timeout=60).text.splitlines()
    contexts = [ReceiptContext(read_response(json.loads(line))) for line in lines]
    policy = ReceiptPolicy(audit_sample=0.0, complete=True)
    assert verify_stream(contexts, promised, policy, bytes(16)).outcome != "rejected"


def test_a_client_that_leaves_is_stated_and_the_server_goes_on(running: Server) -> None:
    body = {"model": NAME, "prompt": "The", "max_tokens": 250, "temperature": 1.0}
    ends = []
    for seed in range(2, 10):  # a short answer may be over before the server hears that nobody listens
        ends.append(_left(running, body | {"seed": seed, "stream": True}))
        if ends[-1] == "cancelled":
            break
    assert ends[-1] == "cancelled", ends
    assert asked(running.url, {**body, "seed": 2, "max_tokens": 3})[0].receipt


def _left(running: Server, body: dict[str, Any]) -> str:
    """How a receipt says that an answer ended whose reader left after its first token."""
    with httpx.stream("POST", f"{running.url}{TEXT['path']}", json=body, timeout=300) as response:
        name = response.headers["X-Request-Id"]
        next(line for line in response.iter_lines() if "token_ids" in line)
    for _ in range(100):
        receipt = httpx.get(f"{running.url}/v1/receipts/{name}", timeout=60)
        if receipt.status_code == 200:
            break
        threading.Event().wait(0.1)
    return str(receipt.json()["receipt"]["answer"]["finish"])


@pytest.mark.parametrize("changes", [{"ignore_eos": True}, {"echo": True}, {"prompt": ["a", "b"]}, {"max_tokens": 999}])
def test_what_gets_no_receipt_is_refused_with_one_line(running: Server, changes: dict[str, Any]) -> None:
    body = {"model": NAME, "prompt": "The", "max_tokens": 4, **changes}
    response = httpx.post(f"{running.url}{TEXT['path']}", json=body, timeout=60)
    assert response.status_code == 400
    assert next(iter(changes)) in response.json()["error"]["message"]


def test_a_server_whose_receipts_would_not_be_true_ends_with_one_line(directory: Path, tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages }}")
    command = [str(Path(sys.executable).with_name("tally")), "serve-vllm", str(directory), "--"]
    found = subprocess.run(
        [*command, *OPTIONS, "--port", "8782", "--chat-template", str(template)], capture_output=True, text=True
    )
    assert found.returncode != 0
    assert "tally: start vLLM without --chat-template" in found.stderr + found.stdout

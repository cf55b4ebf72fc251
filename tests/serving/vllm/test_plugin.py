"""The plugin against a stub of vLLM's documented interfaces: rows that come, go, move, and are fed in parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tallystick.attestation.signing import SigningKey, verify_receipt_signature
from tallystick.errors import MalformedError, UnavailableError, UsageError
from tallystick.frameworks.torch.generation.sampler import TorchSampler
from tallystick.recorders.receipts import ReceiptIssuer, RecordSettings
from tallystick.tolerances.fingerprints.settings import FingerprintSettings
from tallystick.transcripts.sampler import Sampler

STUB = Path(__file__).parent / "stub"
PROMPTS = [[1, 2, 3], [4] * 11, [5, 6], [7, 8, 9, 10, 11, 12], [13], [14, 15, 16, 17, 18]]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 0.0},
    {"temperature": 1.3, "top_k": 9},
    {"temperature": 1.0, "repetition_penalty": 1.4},
    {"temperature": 1.0, "min_p": 0.05, "top_k": -1},
]


@pytest.fixture(scope="module")
def plugin(one_thread: None) -> Iterator[Any]:
    """The plugin's modules, and the stub that stands for vLLM."""
    sys.path.insert(0, str(STUB))
    names = ("plugin", "interface", "logits_processor", "hidden_rows", "receipts")
    yield SimpleNamespace(
        vllm=import_module("vllm"), **{name: import_module(f"tallystick.serving.vllm.{name}") for name in names}
    )
    sys.path.remove(str(STUB))
    for name in [
        each for each in sys.modules if each.split(".")[0] == "vllm" or each.startswith("tallystick.serving.vllm.")
    ]:
        del sys.modules[name]


def params_of(plugin: Any, tokens: int = 9) -> list[Any]:
    return [
        plugin.vllm.SamplingParams(**fields, seed=40 + number, max_tokens=tokens + number, extra_args={"tally": 1})
        for number, fields in enumerate(SETTINGS)
    ]


def generated(plugin: Any, params: list[Any], prompts: list[list[int]], rows: int = 3) -> list[list[int]]:
    llm = plugin.vllm.LLM([plugin.logits_processor.CanonicalLogitsProcessor], rows=rows)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


@torch.inference_mode()
def canonical(plugin: Any, prompt: list[int], params: Any) -> list[int]:
    """The tokens that the canonical sampler chooses from the bare model's logits."""
    model, tokens = plugin.vllm.LLM([]).model, list(prompt)
    sampler: Sampler = plugin.logits_processor.sampler_of(params)
    for position in range(params.max_tokens):
        hidden = model(torch.tensor(tokens), torch.arange(len(tokens)))
        logits = model.compute_logits(hidden[-1:])
        tokens += TorchSampler([sampler]).choose(logits, [position], [tokens]).tolist()
    return tokens[len(prompt) :]


def test_tokens_are_the_canonical_ones_wherever_a_request_stands_in_the_batch(plugin: Any) -> None:
    params = params_of(plugin)
    expected = [canonical(plugin, prompt, asked) for prompt, asked in zip(PROMPTS, params, strict=True)]
    for rows in (1, 2, 3, 6):
        assert generated(plugin, params, PROMPTS, rows) == expected


def test_requests_that_do_not_ask_are_left_alone(plugin: Any) -> None:
    processor = plugin.logits_processor.CanonicalLogitsProcessor(None, torch.device("cpu"), False)
    update = plugin.interface.BatchUpdate
    asks = plugin.vllm.SamplingParams(seed=1, extra_args={"tally": 1})
    processor.update_state(update(2, [], [(0, plugin.vllm.SamplingParams(), [1], []), (1, asks, [1], [])], []))
    logits = torch.randn(2, 64)
    found = processor.apply(logits.clone())
    assert torch.equal(found[0], logits[0])
    assert torch.isfinite(found[1]).sum() == 1
    processor.update_state(update(2, [], [(1, plugin.vllm.SamplingParams(), [1], [])], []))
    assert torch.equal(processor.apply(logits.clone()), logits)
    assert not processor.is_argmax_invariant()


@pytest.mark.parametrize("wrong", [{"seed": None}, {"seed": -1}, {"temperature": -1.0}, {"repetition_penalty": 1e9}])
def test_settings_that_the_canonical_sampler_lacks_are_refused(plugin: Any, wrong: dict[str, Any]) -> None:
    processor = plugin.logits_processor.CanonicalLogitsProcessor
    processor.validate_params(plugin.vllm.SamplingParams(seed=1, extra_args={"tally": 1}))
    processor.validate_params(plugin.vllm.SamplingParams(**wrong))
    with pytest.raises(ValueError, match="tally"):
        processor.validate_params(plugin.vllm.SamplingParams(**{"seed": 1, **wrong}, extra_args={"tally": 1}))


def test_a_penalty_needs_every_token_so_far(plugin: Any) -> None:
    row = plugin.logits_processor.Row
    assert row(Sampler(repetition_penalty=1.2), [1], [2]).history == [1, 2]
    assert row(Sampler(), None, [-1]).history == []
    for prompt, answer in ((None, [2]), ([1], [-1])):
        with pytest.raises(UnavailableError, match="asynchronous"):
            _ = row(Sampler(repetition_penalty=1.2), prompt, answer).history


@torch.inference_mode()
def states_of(plugin: Any, tokens: list[int]) -> dict[int, torch.Tensor]:
    """The sum behind every block, and the final norm, of the bare model."""
    model = plugin.vllm.LLM([]).model
    hidden, residual, found = (
        model.model.embed(torch.tensor(tokens)) + torch.arange(len(tokens))[:, None] * 0.01,
        None,
        {},
    )
    for layer, block in enumerate(model.model.layers):
        hidden, residual = block(hidden, residual)
        found[layer] = hidden + residual
    return {**found, len(found): model.model.norm(hidden, residual)[0]}


def test_hidden_rows_are_those_that_the_tokens_were_chosen_from(plugin: Any) -> None:
    llm = plugin.vllm.LLM([plugin.logits_processor.CanonicalLogitsProcessor], plugin.receipts.EXTENSION)
    llm.collective_rpc("tally_watch", ([0, 2, 3],))
    for output in llm.generate(PROMPTS, params_of(plugin)):
        prompt, answer = output.prompt_token_ids, output.outputs[0].token_ids
        [rows] = llm.collective_rpc("tally_take", (output.request_id, len(answer)))
        expected = states_of(plugin, [*prompt, *answer[:-1]])
        assert set(rows) == {0, 2, 3}
        for layer, states in rows.items():
            torch.testing.assert_close(states, expected[layer][len(prompt) - 1 :])
        with pytest.raises(UnavailableError, match="0 requests"):
            llm.collective_rpc("tally_take", (output.request_id, 1))


def test_rows_that_were_not_seen_are_not_made_up(plugin: Any) -> None:
    rows = plugin.hidden_rows.HiddenRows(plugin.vllm.LLM([]).model, [3])
    rows.end_of_pass(["a-1"], torch.zeros(1, 16))
    with pytest.raises(UnavailableError, match="fewer than 2 rows"):
        rows.take("a", 2)
    with pytest.raises(MalformedError, match="from 0 to 3"):
        plugin.hidden_rows.HiddenRows(plugin.vllm.LLM([]).model, [4])
    with pytest.raises(UnavailableError, match="not built of"):
        plugin.hidden_rows.HiddenRows(torch.nn.Linear(1, 1), [0])


def test_answers_of_generate_get_receipts(plugin: Any, language_model: Any) -> None:
    settings = RecordSettings((FingerprintSettings(layers=(3,)),))
    issuer = ReceiptIssuer(language_model, SigningKey(bytes(32)), settings)
    issuer.engine = plugin.receipts.describe_vllm("0.0 (stub)", "cpu", "none", issuer.engine.environment)
    llm = plugin.vllm.LLM([plugin.logits_processor.CanonicalLogitsProcessor], plugin.receipts.EXTENSION)
    llm.collective_rpc("tally_watch", (issuer.settings.layers,))
    params = params_of(plugin)
    outputs = llm.generate(PROMPTS, params)
    issued = plugin.receipts.issue_receipts(llm, outputs, params, issuer, "ab")
    for output, asked, each in zip(outputs, params, issued, strict=True):
        verify_receipt_signature(each.signed)
        receipt = each.signed.receipt
        assert receipt.answer.tokens.ids == tuple(output.outputs[0].token_ids)
        assert (receipt.sampler.seed, receipt.answer.finish, receipt.engine.name) == (asked.seed, "length", "vllm")
        assert receipt.fingerprints[0].tokens == asked.max_tokens
    with pytest.raises(UsageError, match="not sampled canonically"):
        plugin.receipts.issue_receipts(llm, outputs[:1], [plugin.vllm.SamplingParams()], issuer)


def test_registering_twice_is_registering_once(plugin: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert plugin.plugin.register()
    assert plugin.plugin.register()
    assert ["experimental" in record.message for record in caplog.records] == [True]


def test_a_vllm_without_the_interface_is_left_to_itself(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin.plugin.has_interface()
    monkeypatch.setitem(sys.modules, "tallystick.serving.vllm.interface", None)
    assert not plugin.plugin.has_interface()

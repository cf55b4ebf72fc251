"""The plugin against a stub of both model runners of vLLM: rows that come, go, move, and are fed in parts or again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tallystick.core.canonical_json import encode, parse
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.engines.torch.generation.layer_tap import logit_rows
from tallystick.engines.torch.generation.sampler import TorchSampler
from tallystick.formats.fingerprints import PUBLIC_SEED, FingerprintSettings
from tallystick.formats.receipt import Sampler
from tallystick.formats.signing import SigningKey, verify_receipt_signature
from tallystick.recording.receipts import RecordSettings

STUB = Path(__file__).parent / "stub"
PROMPTS = [[1, 2, 3], [4] * 11, [5, 6], [7, 8, 9, 10, 11, 12], [13], [14, 15, 16, 17, 18], [19, 20], [21] * 6, [22, 23]]
CONFIGURED = {"quantization": None, "logprobs_mode": "raw_logprobs", "logits_processors": []}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 0.0},
    {"temperature": 1.3, "top_k": 9},
    {"temperature": 1.0, "repetition_penalty": 1.4},
    {"temperature": 1.0, "min_p": 0.05, "top_k": -1},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0.8, "logit_bias": {3: 4.0, 9: -100.0, 11: 0.0}},
    {"temperature": 0.0, "allowed_token_ids": [40, 7, 7, 21], "logit_bias": {21: 3.0}},
]


RUNNERS = ("V1", "V2")
MODULES = {name: name for name in ("plugin", "logits_processor", "hidden_rows", "receipts", "start", "worker")}
MODULES |= {"interface": "logits_processor", "batches": "logits_processor", "runners": "worker", "wire": "receipts"}
"""The module of each subject."""


@pytest.fixture(scope="module")
def plugin(one_thread: None) -> Iterator[Any]:
    """The plugin's modules, and the stub that stands for vLLM."""
    sys.path.insert(0, str(STUB))
    yield SimpleNamespace(
        vllm=import_module("vllm"),
        **{name: import_module(f"tallystick.recording.serving.vllm.{home}") for name, home in MODULES.items()},
    )
    sys.path.remove(str(STUB))
    for name in [
        each
        for each in sys.modules
        if each.split(".")[0] == "vllm" or each.startswith("tallystick.recording.serving.vllm.")
    ]:
        del sys.modules[name]


def params_of(plugin: Any, tokens: int = 9, **others: Any) -> list[Any]:
    return [
        plugin.vllm.SamplingParams(
            **fields, seed=40 + number, max_tokens=tokens + number, extra_args={"tally": 1}, **others
        )
        for number, fields in enumerate(SETTINGS)
    ]


def engine(plugin: Any, **others: Any) -> Any:
    processors = [plugin.logits_processor.CanonicalLogitsProcessor]
    return plugin.vllm.LLM(processors, plugin.receipts.EXTENSION, **others)


@torch.inference_mode()
def canonical(plugin: Any, prompt: list[int], params: Any, choice: int = 0) -> list[int]:
    """The tokens that the canonical sampler chooses from the bare model's logits."""
    model, tokens = plugin.vllm.LLM([]).model, list(prompt)
    sampler: Sampler = plugin.batches.sampler_of(params, choice)
    for position in range(params.max_tokens):
        hidden = model(torch.tensor(tokens), torch.arange(len(tokens)))
        logits = model.compute_logits(hidden[-1:])
        tokens += TorchSampler([sampler]).choose(logits, [position], [tokens]).tolist()
    return tokens[len(prompt) :]


@pytest.mark.parametrize("runner", RUNNERS)
def test_tokens_are_the_canonical_ones_wherever_a_request_stands_in_the_batch(plugin: Any, runner: str) -> None:
    params = params_of(plugin)
    expected = [canonical(plugin, prompt, asked) for prompt, asked in zip(PROMPTS, params, strict=True)]
    for rows, preempts in ((1, 0.0), (2, 0.3), (3, 0.0), (6, 0.3)):
        outputs = engine(plugin, rows=rows, runner=runner, preempts=preempts).generate(PROMPTS, params)
        assert [output.outputs[0].token_ids for output in outputs] == expected


def test_settings_can_stand_in_extra_arguments_so_that_vllm_draws_nothing(plugin: Any) -> None:
    own = {"tally": 1, "tally_temperature": 0.7, "tally_top_p": 0.8, "tally_top_k": 5, "tally_min_p": 0.1}
    asks, plain = plugin.vllm.SamplingParams(temperature=0.0, seed=3, extra_args=own), plugin.vllm.SamplingParams
    expected = Sampler(temperature=0.7, top_p=0.8, top_k=5, min_p=0.1, seed=3)
    assert plugin.batches.sampler_of(asks) == expected
    same = plain(temperature=0.7, top_p=0.8, top_k=5, min_p=0.1, seed=3, extra_args={"tally": 1})
    outputs = engine(plugin).generate(PROMPTS[:2], [asks, same])
    assert outputs[0].outputs[0].token_ids == canonical(plugin, PROMPTS[0], same)
    check = plugin.logits_processor.CanonicalLogitsProcessor.validate_params
    with pytest.raises(ValueError, match="top_p"):
        check(plain(seed=3, extra_args={"tally": 1, "tally_top_p": 2.0}))


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_choice_of_a_request_has_its_own_seed(plugin: Any, runner: str) -> None:
    [params, *_] = params_of(plugin, n=3)
    [output] = engine(plugin, runner=runner).generate(PROMPTS[:1], [params])
    found = [answer.token_ids for answer in output.outputs]
    assert found == [canonical(plugin, PROMPTS[0], params, choice) for choice in range(3)]
    assert len({tuple(each) for each in found}) == 3


def test_requests_that_do_not_ask_are_left_alone(plugin: Any) -> None:
    processor = plugin.logits_processor.CanonicalLogitsProcessor(plugin.vllm.config(), torch.device("cpu"), False)
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": None},
        {"seed": -1},
        {"temperature": -1.0},
        {"repetition_penalty": 1e9},
        {"presence_penalty": 2.5},
        {"logit_bias": {3: 500.0}},
        {"bad_words": ["a"]},
        {"min_tokens": 3},
        {"ignore_eos": True},
        {"structured_outputs": object()},
        {"thinking_token_budget": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_settings_that_no_receipt_can_state_are_refused_by_name(plugin: Any, wrong: dict[str, Any]) -> None:
    processor = plugin.logits_processor.CanonicalLogitsProcessor
    processor.validate_params(plugin.vllm.SamplingParams(seed=1, extra_args={"tally": 1}))
    processor.validate_params(plugin.vllm.SamplingParams(**wrong))
    [name] = wrong
    with pytest.raises(ValueError, match=rf"^tally.*{name}") as caught:
        processor.validate_params(plugin.vllm.SamplingParams(**{"seed": 1, **wrong}, extra_args={"tally": 1}))
    assert "\n" not in str(caught.value)


ENDS = {"tally": 1, "tally_end_token_ids": "5,9"}


@pytest.mark.parametrize("runner", RUNNERS)
def test_end_tokens_and_those_that_stop_are_held_back_before_the_least_length(plugin: Any, runner: str) -> None:
    asked = plugin.vllm.SamplingParams(
        seed=3, min_tokens=8, stop_token_ids=[11], max_tokens=12, logit_bias={5: 50.0, 11: 49.0}, extra_args=ENDS
    )
    sampler = plugin.batches.sampler_of(asked)
    assert (sampler.min_tokens, sampler.end_token_ids) == (8, (5, 9, 11))
    [output] = engine(plugin, runner=runner, preempts=0.3).generate(PROMPTS[:1], [asked])
    found = output.outputs[0].token_ids
    assert found == canonical(plugin, PROMPTS[0], asked)
    assert not {*found[:8]} & {5, 9, 11}
    assert found[8] == 5


class EveryThird:
    """Masks that depend on all tokens so far."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.sum = vocabulary, 0

    def allowed(self) -> Any:
        return (np.arange(self.vocabulary) + self.sum) % 3 == 0

    def take(self, token: int) -> None:
        assert self.allowed()[token]
        self.sum += token


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_answer_under_a_schema_follows_the_masks_wherever_it_stands_in_the_batch(
    plugin: Any, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `grammar`")
    made: list[tuple[str, tuple[int, ...]]] = []

    def maker(directory: str, vocabulary: int) -> Any:
        return lambda schema, ends: made.append((schema, ends)) or EveryThird(vocabulary)

    monkeypatch.setattr(plugin.logits_processor, "masks_maker", maker)
    own = ENDS | {"tally_grammar": "json_schema", "tally_schema": '{"type":"object"}'}
    plain = params_of(plugin)[:3]
    held = [plugin.vllm.SamplingParams(seed=50 + each, max_tokens=9, extra_args=own) for each in range(3)]
    expected = [masked(plugin, prompt, asked) for prompt, asked in zip(PROMPTS, held, strict=False)]
    for rows, preempts in ((1, 0.0), (3, 0.4), (6, 0.4)):
        outputs = engine(plugin, runner=runner, rows=rows, preempts=preempts).generate(PROMPTS[:6], [*held, *plain])
        assert [each.outputs[0].token_ids for each in outputs[:3]] == expected
    assert {*made} == {('{"type":"object"}', (5, 9))}
    assert plugin.batches.sampler_of(held[0]).grammar.library == "llguidance"


@torch.inference_mode()
def masked(plugin: Any, prompt: list[int], params: Any) -> list[int]:
    """The canonical tokens under the masks."""
    model, tokens = plugin.vllm.LLM([]).model, list(prompt)
    sampler, masks = plugin.batches.sampler_of(params), None
    for position in range(params.max_tokens):
        hidden = model(torch.tensor(tokens), torch.arange(len(tokens)))
        logits = model.compute_logits(hidden[-1:])
        masks = masks or EveryThird(logits.shape[1])
        tokens += TorchSampler([sampler]).choose(logits, [position], [tokens], [masks.allowed()]).tolist()
        masks.take(tokens[-1])
    return tokens[len(prompt) :]


def test_an_answer_whose_masks_are_gone_gets_no_receipt_and_the_engine_goes_on(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `grammar`")

    def refuse(schema: str, ends: tuple[int, ...]) -> Any:
        raise UnavailableError("too much work")

    monkeypatch.setattr(plugin.logits_processor, "masks_maker", lambda *_: refuse)
    own = {"tally": 1, "tally_grammar": "json_schema", "tally_schema": "{}"}
    llm = engine(plugin)
    llm.collective_rpc("tally_watch", args=([0],))
    params = [plugin.vllm.SamplingParams(seed=1, extra_args=own), params_of(plugin)[0]]
    outputs = llm.generate(PROMPTS[:2], params)
    assert all(each.outputs[0].token_ids for each in outputs)
    with pytest.raises(UnavailableError, match="0 requests of that name have rows"):
        llm.collective_rpc("tally_take", args=("0", 16))
    assert llm.collective_rpc("tally_take", args=("1", len(outputs[1].outputs[0].token_ids)))


def test_penalties_whose_order_differs_between_the_runners_are_refused_together(plugin: Any) -> None:
    check = plugin.logits_processor.CanonicalLogitsProcessor.validate_params
    for alone in ({"repetition_penalty": 1.2}, {"presence_penalty": 0.5, "frequency_penalty": -0.5}):
        check(plugin.vllm.SamplingParams(**alone, seed=1, extra_args={"tally": 1}))
    for other in ("presence_penalty", "frequency_penalty"):
        both = {"repetition_penalty": 1.2, other: 0.5}
        with pytest.raises(ValueError, match="another penalty"):
            check(plugin.vllm.SamplingParams(**both, seed=1, extra_args={"tally": 1}))


def test_a_start_under_which_no_receipt_is_true_is_refused_by_option(plugin: Any) -> None:
    own = plugin.receipts.PROCESSOR
    assert list(plugin.start.refusals(plugin.vllm.config(own))) == []
    for option, change in (
        ("--speculative-config", {"speculative_config": object()}),
        ("--enable-lora", {"lora_config": object()}),
        ("--pipeline-parallel-size", {"parallel_config": SimpleNamespace(pipeline_parallel_size=2)}),
        ("--quantization", {"model_config": SimpleNamespace(**CONFIGURED | {"quantization": "fp8"})}),
        ("--logprobs-mode", {"model_config": SimpleNamespace(**CONFIGURED | {"logprobs_mode": "processed_logits"})}),
        ("--logits-processors", {"model_config": SimpleNamespace(**CONFIGURED | {"logits_processors": [own, "x:Y"]})}),
    ):
        changed = SimpleNamespace(**vars(plugin.vllm.config()) | change)
        with pytest.raises(ValueError, match=f"^tally: start vLLM without {option}"):
            plugin.logits_processor.CanonicalLogitsProcessor(changed, torch.device("cpu"), False)


def test_a_penalty_needs_every_token_so_far(plugin: Any) -> None:
    row = plugin.batches.BatchRow
    assert row(Sampler(), None, [-1]).history == []
    for sampler in (Sampler(repetition_penalty=1.2), Sampler(presence_penalty=0.1), Sampler(frequency_penalty=0.1)):
        assert row(sampler, [1], [2]).history == [1, 2]
        for prompt, answer in ((None, [2]), ([1], [-1])):
            with pytest.raises(UnavailableError, match="all tokens so far"):
                _ = row(sampler, prompt, answer).history


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
    final = model.model.norm(hidden, residual)[0]
    return {**found, 3: final, 4: logit_rows(model.compute_logits(final), PUBLIC_SEED)}


@pytest.mark.parametrize("runner", RUNNERS)
def test_hidden_rows_are_those_that_the_tokens_were_chosen_from(plugin: Any, runner: str) -> None:
    llm = engine(plugin, runner=runner, preempts=0.2)
    llm.collective_rpc("tally_watch", args=([0, 2, 3, 4],))
    for output in llm.generate(PROMPTS, params_of(plugin)):
        prompt, answer = output.prompt_token_ids, output.outputs[0].token_ids
        [packed] = llm.collective_rpc("tally_take", args=(output.request_id, len(answer)))
        rows, expected = plugin.wire.unpack_rows(packed["rows"]), states_of(plugin, [*prompt, *answer[:-1]])
        assert set(rows) == {0, 2, 3, 4}
        for layer, states in rows.items():
            torch.testing.assert_close(states, expected[layer][len(prompt) - 1 :])
        with pytest.raises(UnavailableError, match="0 requests"):
            llm.collective_rpc("tally_take", args=(output.request_id, 1))


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("layers", [[], [3]])
def test_the_largest_batch_of_a_pass_is_stated(plugin: Any, runner: str, layers: list[int]) -> None:
    for rows in (1, 3):
        llm = engine(plugin, rows=rows, runner=runner)
        llm.collective_rpc("tally_watch", args=(layers,))
        outputs = llm.generate(PROMPTS[:3], params_of(plugin)[:3])
        kept = [llm.collective_rpc("tally_take", args=(each.request_id, 9))[0] for each in outputs]
        assert [each["largest"] for each in kept] == [rows] * 3
        assert [list(each["rows"]) for each in kept] == [list(map(str, layers))] * 3


def test_rows_go_through_plain_data(plugin: Any) -> None:
    llm = engine(plugin)
    llm.collective_rpc("tally_watch", args=([3],))
    [output] = llm.generate(PROMPTS[:1], params_of(plugin)[:1])
    [packed] = llm.collective_rpc("tally_take", args=(output.request_id, 2))
    assert packed["largest"] == 1
    assert {type(each) for held in packed["rows"].values() for each in held.values()} == {str, int, bytes}
    [described] = llm.collective_rpc("tally_describe")
    assert parse(encode(described), "described") == described


def test_a_compiled_model_shows_final_norm_and_logits(plugin: Any) -> None:
    llm = engine(plugin, vllm_config=plugin.vllm.config(mode="VLLM_COMPILE"))
    [described] = llm.collective_rpc("tally_describe")
    assert (described["layers"], described["blocks"]) == ([3, 4], 3)
    assert "compiled" in described["engine"]["version"]
    llm.collective_rpc("tally_watch", args=([3, 4],))
    with pytest.raises(MalformedError, match="--enforce-eager"):
        llm.collective_rpc("tally_watch", args=([1, 3],))


def test_watching_needs_the_processor_and_can_be_done_anew(plugin: Any) -> None:
    bare = plugin.vllm.LLM([], plugin.receipts.EXTENSION)
    with pytest.raises(UnavailableError, match="--logits-processors"):
        bare.collective_rpc("tally_watch", args=([3],))
    llm = engine(plugin)
    for _ in range(2):
        llm.collective_rpc("tally_watch", args=([0, 3],))
    [output] = llm.generate(PROMPTS[:1], params_of(plugin)[:1])
    [packed] = llm.collective_rpc("tally_take", args=(output.request_id, 9))
    assert len(plugin.wire.unpack_rows(packed["rows"])[0]) == 9
    with pytest.raises(UnavailableError, match="not built of"):
        plugin.runners.blocks_of(torch.nn.Linear(1, 1))


def test_rows_of_requests_that_left_are_freed(plugin: Any) -> None:
    llm = engine(plugin)
    llm.collective_rpc("tally_watch", args=([3],))
    outputs = llm.generate(PROMPTS, params_of(plugin))
    held = llm.worker._tally_rows
    assert len(held.requests) == len(PROMPTS)
    for output in outputs:
        llm.collective_rpc("tally_drop", args=(output.request_id,))
        llm.collective_rpc("tally_drop", args=(output.request_id,))
    assert held.requests == ()


@pytest.mark.parametrize("runner", RUNNERS)
def test_answers_of_generate_get_receipts(plugin: Any, language_model: Any, runner: str, tmp_path: Path) -> None:
    settings = RecordSettings((FingerprintSettings(layers=(3, 4)),))
    llm = engine(plugin, runner=runner)
    params = [*params_of(plugin)[:-1], params_of(plugin, n=2)[-1]]
    params[0].max_tokens = None
    card, key, journal = language_model.card, SigningKey(bytes(32)), tmp_path / "journal"
    with plugin.receipts.vllm_issuer(llm, card, key, settings, journal) as issuer:
        outputs = llm.generate(PROMPTS, params)
        issued = plugin.receipts.issue_receipts(llm, outputs, params, issuer, "ab")
        with pytest.raises(UsageError, match="not sampled canonically"):
            plugin.receipts.issue_receipts(llm, outputs[:1], [plugin.vllm.SamplingParams()], issuer)
    assert len(journal.read_bytes().splitlines()) == len(issued)
    answers = [(asked, answer) for output, asked in zip(outputs, params, strict=True) for answer in output.outputs]
    for (asked, answer), each in zip(answers, issued, strict=True):
        verify_receipt_signature(each.signed)
        receipt = each.signed.receipt
        assert receipt.answer.tokens.ids == tuple(answer.token_ids)
        assert (receipt.sampler.seed, receipt.answer.finish) == (asked.seed + answer.index, "length")
        assert receipt.request.max_tokens == receipt.fingerprints[0].tokens == len(answer.token_ids)
        assert (receipt.engine.name, receipt.engine.attention, receipt.engine.kv_cache) == (
            "vllm",
            "STUB_ATTN",
            "native",
        )
    assert [each.signed.receipt.request.id for each in issued[-2:]] == ["8-0", "8-1"]


def test_an_answer_that_broke_off_gets_no_receipt(plugin: Any) -> None:
    finish_of = plugin.receipts.finish_of
    told = [("stop", None), ("stop", 2), ("stop", "x"), ("length", None), ("abort", None)]
    assert [finish_of(*each) for each in told] == ["end", "end", "stop", "length", "cancelled"]
    for reason in (None, "error", "repetition"):
        with pytest.raises(UsageError, match="no receipt"):
            finish_of(reason, None)


def test_a_version_that_was_not_tried_is_told_once(
    plugin: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [plugin.start.is_tried(each) for each in ("0.32.0", "0.32", "0.320.1", "0.33.0", "unknown")] == [
        *(True, True),
        *(False, False, False),
    ]
    monkeypatch.setattr(plugin.plugin, "vllm_version", lambda: "0.99.0")
    assert [plugin.plugin.register(), plugin.plugin.register()] == [False, False]
    assert ["0.99.0 was not tried" in record.message for record in caplog.records] == [True]

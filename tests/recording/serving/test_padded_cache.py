"""Sequences of different lengths in one batch: each gets the logits that it gets alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tallystick.core.errors import UnavailableError
from tallystick.recording.serving.batching import PaddedCache, check_cache

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8, 9], [10, 11, 12, 13], [14]]


@pytest.fixture(params=["llama", "llama-eager", "mistral-window", "qwen3", "gpt2"])
def model(request: pytest.FixtureRequest, one_thread: None) -> Any:
    torch.manual_seed(3)
    built: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        "llama-eager": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation="eager")),
        "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=64)),
    }
    return built[request.param]().eval()


def prefilled(model: Any, prompt: list[int]) -> Any:
    cache = DynamicCache()
    model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)
    check_cache(cache)
    return cache


def stepped(model: Any, cache: PaddedCache, tokens: list[int]) -> torch.Tensor:
    output = model(
        input_ids=torch.tensor(tokens)[:, None],
        attention_mask=cache.next_mask("cpu"),
        position_ids=cache.next_positions("cpu"),
        past_key_values=cache.cache,
        use_cache=True,
    )
    cache.grow()
    logits: torch.Tensor = output.logits[:, -1]
    return logits


def alone(model: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return logits


@torch.inference_mode()
def test_every_row_is_what_it_is_alone_while_rows_join_and_leave(model: Any) -> None:
    cache, rows = PaddedCache(), [list(prompt) for prompt in PROMPTS[:2]]
    cache.join([prefilled(model, row) for row in rows], [len(row) for row in rows])
    for turn in range(6):
        if turn == 2:
            cache.join([prefilled(model, row) for row in PROMPTS[2:]], [len(row) for row in PROMPTS[2:]])
            rows += [list(prompt) for prompt in PROMPTS[2:]]
        if turn == 4:
            cache.keep([1, 3])
            rows = [rows[1], rows[3]]
        tokens = [20 + turn + number for number in range(len(rows))]
        logits = stepped(model, cache, tokens)
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)
        torch.testing.assert_close(logits, torch.stack([alone(model, row) for row in rows]), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_padding_that_nobody_needs_is_dropped(model: Any) -> None:
    cache = PaddedCache()
    cache.join([prefilled(model, row) for row in PROMPTS], [len(row) for row in PROMPTS])
    assert cache.cache.layers[0].keys.shape[-2] == 7
    cache.keep([1, 3])
    assert (cache.cache.layers[0].keys.shape[-2], cache.lengths) == (2, [2, 1])
    cache.keep([])
    assert (len(cache.cache.layers), cache.lengths) == (0, [])


@torch.inference_mode()
def test_states_that_cannot_be_padded_are_refused(one_thread: None) -> None:
    model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2))
    cache = DynamicCache(config=model.config)
    with pytest.raises(UnavailableError, match=r"layer 0: .* cannot be batched"):
        check_cache(cache)

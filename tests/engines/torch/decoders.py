"""Small causal language models of two layers, and all that a step of one reads."""

from __future__ import annotations

import os
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
VOCABULARY = 64
PLACES = 32
SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "gpt2": dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
}
NAMES = tuple(SETTINGS)


def build(name: str, attention: str = "eager", **settings: Any) -> Any:
    """The model of that name; its weights are the same at every call."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": PLACES, "vocab_size": VOCABULARY}
    marks: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.AutoConfig.for_model(name, **marks, **sizes, **SETTINGS.get(name, {}), **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def blocks(model: Any) -> Any:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers

"""Mixtures of experts, in each way in which transformers runs experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from research.architectures.example import Example, loss_of_tokens, tokens
from research.architectures.sequences import causal_model

LOOP: Final = "eager"
WAYS: Final = (LOOP, "batched_mm", "grouped_mm")
KINDS: Final[Mapping[str, tuple[str, Mapping[str, int]]]] = {
    "Mixtral": ("mixtral", {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen3-MoE": (
        "qwen3_moe",
        {"num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 16},
    ),
    "DeepSeek-V3": (
        "deepseek_v3",
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
        }
        | {"num_experts_per_tok": 2, "num_hidden_layers": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 16}
        | {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8},
    ),
}


def _experts(kind: str, way: str, **sizes: Any) -> Example:
    model = causal_model(kind, **sizes)
    model.set_experts_implementation(way)
    return Example(model, loss_of_tokens, tokens, {"use_cache": False})


MODELS: Final[Mapping[str, Callable[[], Example]]] = {
    f"{name}, {way}": partial(_experts, kind, way, **sizes) for name, (kind, sizes) in KINDS.items() for way in WAYS
}
REFUSED: Final = tuple(name for name in MODELS if name.endswith(LOOP))
"""Which experts run, and on how many rows, is control flow that depends on data."""

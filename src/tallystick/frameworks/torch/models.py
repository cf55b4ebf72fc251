"""Builds models from a recipe with the verifier's own libraries; it downloads nothing and loads no weights."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.refusals import REFUSALS
from tallystick.transcripts.recipe import Recipe

PARAMETERS_MAX = 2_000_000_000
MODULES_MAX = 20_000


class Classifier(nn.Module):
    """Two convolutions with batch norm and a linear layer: images [n, 1, 8, 8] float32 to logits [n, 10]."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(2 * channels * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [n, 10] of images [n, 1, 8, 8]."""
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def build_model(recipe: Recipe, vocabulary: int, parameters_max: int = PARAMETERS_MAX) -> nn.Module:
    """The untrained model of a recipe, initialised from the global generators.

    Raises:
        MalformedError: the architecture or its configuration cannot be built.
        UnavailableError: the model has more than `parameters_max` parameters.
    """
    with torch.device("meta"), _few_modules():
        shape = _build(recipe, vocabulary)
    count = sum(parameter.numel() for parameter in shape.parameters())
    if count > parameters_max:
        raise UnavailableError(f"the model has {count} parameters, more than the {parameters_max} allowed")
    return _build(recipe, vocabulary)


@contextmanager
def _few_modules() -> Iterator[None]:
    """Raise `MalformedError` inside the block after `MODULES_MAX` modules, more than any real model has."""
    built = itertools.count(1)

    def register(_module: nn.Module, _name: str, _part: nn.Module | None) -> None:
        if next(built) > MODULES_MAX:
            raise MalformedError(f"model.config: more than {MODULES_MAX} modules")

    hook = register_module_module_registration_hook(register)
    try:
        yield
    finally:
        hook.remove()


def logits_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits of a batch: [n, 10] for images, [n · sequence, vocabulary] for tokens."""
    if "images" in batch:
        logits: torch.Tensor = model(batch["images"])
        return logits
    outputs = model(input_ids=batch["inputs"], use_cache=False)
    tokens: torch.Tensor = outputs.logits
    return tokens.flatten(0, 1)


def labels_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The class or token index that each row of the logits should predict."""
    return batch["labels"] if "labels" in batch else batch["targets"].flatten()


def _build(recipe: Recipe, vocabulary: int) -> nn.Module:
    if recipe.model.architecture == "cnn":
        return Classifier(*_classifier_shape(recipe.model.config))
    return _language_model(recipe, vocabulary)


def _classifier_shape(config: dict[str, Any]) -> tuple[int, float]:
    unknown = config.keys() - {"channels", "dropout"}
    if unknown:
        raise MalformedError(f"model.config.{min(unknown)}: not a setting of the CNN classifier")
    channels, dropout = config.get("channels", 16), config.get("dropout", 0.0)
    if not isinstance(channels, int) or not 1 <= channels <= 1024:
        raise MalformedError("model.config.channels: an integer from 1 to 1024 is needed")
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise MalformedError("model.config.dropout: a number from 0 up to 1 is needed")
    return channels, float(dropout)


def _language_model(recipe: Recipe, vocabulary: int) -> nn.Module:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    architecture = recipe.model.architecture
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise MalformedError(f"model.architecture: {architecture!r} is no causal language model of transformers")
    settings = {"vocab_size": vocabulary, "use_cache": False} | recipe.model.config
    if not isinstance(size := settings["vocab_size"], int) or size < vocabulary:
        raise MalformedError(f"model.config.vocab_size: smaller than the tokenizer's {vocabulary}")
    try:
        config = AutoConfig.for_model(architecture, **_without_special_tokens(settings, architecture))
        model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation=recipe.model.attention)
    except (*REFUSALS, StrictDataclassError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise MalformedError(f"model.config: transformers cannot build a {architecture}: {reason[0][:200]}") from None
    return model


def _without_special_tokens(settings: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Settings without special tokens: small vocabularies lack the default ones, and plain text needs none."""
    none: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return none | settings

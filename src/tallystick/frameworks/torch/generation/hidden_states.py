"""Finds the modules that output hidden states in a language model of transformers: blocks and final norm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from tallystick.errors import MalformedError, UnavailableError

NORM_NAMES: Final = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
Watch = Callable[[int, torch.Tensor], None]


def decoder_blocks(model: Any) -> list[nn.Module]:
    """The blocks in order; raises `UnavailableError` if the model does not have exactly one list of them."""
    count = model.config.num_hidden_layers
    lists = [part for part in _backbone(model).children() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(lists) != 1:
        raise UnavailableError(f"{type(model).__name__}: not built of one list of {count} blocks")
    return list(lists[0])


def final_norm(model: nn.Module) -> nn.Module:
    """The norm after the last block; raises `UnavailableError` if none has a known name."""
    for name, part in _backbone(model).named_children():
        if name in NORM_NAMES:
            return part
    raise UnavailableError(f"{type(model).__name__}: no final norm named {', '.join(NORM_NAMES)}")


@contextmanager
def watching_layers(model: nn.Module, layers: Collection[int], watch: Watch) -> Iterator[None]:
    """In every pass inside the block, call `watch` with layer number and hidden states [batch, rows, width].

    Layer 0 is the output of the first block; the last layer, numbered like the count of blocks, is the final norm.
    Raises `MalformedError` for another layer.
    """
    places = [*decoder_blocks(model), final_norm(model)]
    wrong = [layer for layer in layers if not 0 <= layer < len(places)]
    if wrong:
        raise MalformedError(f"layers: {wrong[0]} is not from 0 to {len(places) - 1}")
    handles = [places[layer].register_forward_hook(_reporter(layer, watch)) for layer in sorted(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _reporter(layer: int, watch: Watch) -> Callable[..., None]:
    def report(_: nn.Module, __: Any, output: Any) -> None:
        watch(layer, output if isinstance(output, torch.Tensor) else output[0])

    return report


def _backbone(model: nn.Module) -> nn.Module:
    found = getattr(model, getattr(model, "base_model_prefix", ""), model)
    return found if isinstance(found, nn.Module) else model

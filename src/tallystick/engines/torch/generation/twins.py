"""Other forms of a model that share its weights: another attention, matrices in fewer bits, layers run one by one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any, Final

import torch
from torch import nn

from tallystick.engines.torch.generation.layer_tap import decoder_blocks, watching_layers
from tallystick.verdicts.language_model import Rows

FORMATS: Final[Mapping[str, tuple[int | None, bool]]] = {
    "int8 by row": (None, False),
    "int8 by row, steps in 16 bits": (None, True),
    "int8 in groups of 64, steps in 16 bits": (64, True),
}
"""How many weights of a row share a step, or all; and whether steps and quotients have the model's precision, not F32.

It matters: the two roundings by row move a token's logits in directions that differ about as much as they agree.
"""
LARGEST: Final = 127
TOKENS: Final = -1
"""The number of the layer ahead of the first one."""


class CoarseLinear(nn.Module):
    """A linear layer that rounds its matrix when it is used, so that nobody holds it twice."""

    def __init__(self, exact: nn.Linear, group: int | None, steps: torch.dtype, dtype: torch.dtype) -> None:
        super().__init__()
        self.exact, self.group, self.steps, self.dtype = exact, group, steps, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the rounded matrix."""
        weight = self.exact.weight.to(self.steps)
        fits = self.group is not None and weight.shape[1] % self.group == 0
        grouped = weight.reshape(-1, self.group) if fits and self.group else weight
        step = grouped.abs().amax(1, keepdim=True).clamp_min(1e-12) / LARGEST
        rounded = ((grouped / step).round() * step).reshape(weight.shape).to(self.dtype).to(x.dtype)
        return nn.functional.linear(x, rounded, self.exact.bias)


def attention_twin(model: nn.Module, attention: str) -> Any:
    """The model with another implementation of attention, over the same weights."""
    twin: Any = _twin(model)
    twin.set_attn_implementation(attention)
    return twin


def coarse_twin(model: nn.Module, name: str, dtype: torch.dtype) -> Any:
    """The model with the matrices of its blocks in one of `FORMATS`; products with the steps are `dtype`."""
    twin, (group, is_narrow) = _twin(model), FORMATS[name]
    for part in [*decoder_blocks(twin)]:
        for inner in [*part.modules()]:
            for child, layer in [*inner.named_children()]:
                if isinstance(layer, nn.Linear):
                    setattr(inner, child, CoarseLinear(layer, group, dtype if is_narrow else torch.float32, dtype))
    return twin


@torch.inference_mode()
def run_layers(model: Any, ids: torch.Tensor, given: Mapping[int, Rows]) -> dict[int, Rows]:
    """Each layer behind those of `given`, computed from these rows [tokens, width]; one pass for all."""
    blocks, rows_after, handles = decoder_blocks(model), dict[int, Rows](), []
    dtype = next(model.parameters()).dtype

    def keep(layer: int, states: torch.Tensor) -> None:
        rows_after[layer] = states[0].float().cpu().numpy()

    for layer, rows in given.items():
        if layer != TOKENS:
            states = torch.from_numpy(rows)[None].to(ids.device, dtype)
            hook = partial(_with_input, states)
            handles.append(blocks[layer + 1].register_forward_pre_hook(hook))
    try:
        with watching_layers(model, [layer + 1 for layer in given], keep):
            model(input_ids=ids, use_cache=False, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    return rows_after


def _with_input(states: torch.Tensor, _: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (states, *arguments[1:])


def _twin(model: nn.Module) -> nn.Module:
    """A copy whose modules and configuration are its own, and whose tensors are those of the model."""
    return copy.deepcopy(model, {id(each): each for each in chain(model.parameters(), model.buffers())})

"""Cheaper forms of a promised model: fewer bits in its weights, other positions, or fewer layers."""

from __future__ import annotations

import copy
from typing import Any

from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.tally.attacks.provers import rounded, with_matrices

E4M3_MAX = 448.0


def grouped_integer_weights(language_model: TorchLanguageModel, bits: int, group: int) -> Any:
    """Every matrix rounded to 2ᵇⁱᵗˢ − 1 levels for each group of so many weights of a row."""

    def by_groups(weight: Any) -> Any:
        return rounded(weight.reshape(-1, group), bits).reshape(weight.shape)

    return with_matrices(language_model, by_groups)


def other_theta(language_model: TorchLanguageModel, factor: float) -> Any:
    """The model with another base of its rotary positions: θ times `factor`."""
    import torch

    model = copy.deepcopy(language_model.model)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("inv_freq"):
                places = torch.arange(len(buffer), dtype=torch.float32, device=buffer.device) / len(buffer)
                buffer.mul_(factor**-places)
    return model


def coarse_head(language_model: TorchLanguageModel, bits: int) -> Any:
    """Only the output matrix is rounded to few bits; the hidden states do not change."""
    import torch

    model = copy.deepcopy(language_model.model)
    head = model.get_output_embeddings()
    with torch.no_grad():  # a new parameter, since the matrix may be that of the embeddings too
        head.weight = torch.nn.Parameter(rounded(head.weight, bits))
    return model


def float8_weights(language_model: TorchLanguageModel) -> Any:
    """Every matrix in 8-bit floats with 4 exponent and 3 mantissa bits, with one scale per row."""
    import torch

    def as_float8(weight: Any) -> Any:
        scale = weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / E4M3_MAX
        return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale

    return with_matrices(language_model, as_float8)


def bfloat16_model(language_model: TorchLanguageModel) -> Any:
    """The model with its parameters in bfloat16; its buffers stay in float32."""
    import torch

    model = copy.deepcopy(language_model.model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return model


def without_layers(language_model: TorchLanguageModel, layers: tuple[int, ...]) -> Any:
    """The model in which some blocks return their input; negative numbers count from the end."""
    from tallystick.engines.torch.generation.layer_tap import decoder_blocks

    model = copy.deepcopy(language_model.model)
    blocks = decoder_blocks(model)
    for layer in layers:
        blocks[layer].forward = _passes_on
    return model


def _passes_on(hidden_states: Any, *_: Any, **__: Any) -> Any:
    return hidden_states

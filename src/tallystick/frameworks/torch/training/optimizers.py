"""PyTorch's own optimizers, with their state allocated before the first step.

So an anchor of the untrained state holds the same tensors as every later anchor.
"""

from __future__ import annotations

import torch
from torch import nn

from tallystick.transcripts.recipe import Recipe


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a recipe over all trainable parameters of `model`."""
    settings = recipe.optimizer
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.kind == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    else:
        optimizer = torch.optim.AdamW(
            parameters,
            settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
    for parameter in parameters:
        optimizer.state[parameter] = _empty_state(recipe, parameter)
    return optimizer


def _empty_state(recipe: Recipe, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    if recipe.optimizer.kind == "sgd":
        return {"momentum_buffer": zeros} if recipe.optimizer.momentum else {}
    return {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": torch.zeros_like(zeros)}

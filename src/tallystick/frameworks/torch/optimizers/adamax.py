"""The arithmetic of `torch.optim.Adamax`."""

from __future__ import annotations

from typing import Final

import torch

from tallystick.frameworks.torch.optimizers.known import (
    Group,
    KnownOptimizer,
    Scalars,
    Tensors,
    Updated,
    decayed,
    pair,
    picked,
)
from tallystick.transcripts.optimizers.adamax import AdamaxRule


def adamax_rule(_optimizer: torch.optim.Optimizer, group: Group) -> AdamaxRule:
    """The rule of a group."""
    return AdamaxRule(betas=pair(group["betas"]), **picked(group, "eps", "weight_decay", "maximize"))


def update_adamax(
    rule: AdamaxRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adamax."""
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    mean = slots["exp_avg"].lerp(gradient, 1 - rule.betas[0])
    largest = torch.maximum(slots["exp_inf"] * rule.betas[1], gradient.abs().add(rule.eps))
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_inf": largest}
    return torch.addcdiv(parameter, mean * scalars["step_size"], largest), kept


KNOWN: Final = KnownOptimizer(adamax_rule, update_adamax)

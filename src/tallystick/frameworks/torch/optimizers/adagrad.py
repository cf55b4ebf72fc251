"""The arithmetic of `torch.optim.Adagrad`."""

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
    picked,
    refuse_fused,
)
from tallystick.transcripts.optimizers.adagrad import AdagradRule


def adagrad_rule(optimizer: torch.optim.Optimizer, group: Group) -> AdagradRule:
    """The rule of a group; the sums of all groups start at one number."""
    start = optimizer.defaults["initial_accumulator_value"]
    return AdagradRule(initial_accumulator_value=start, **picked(group, "lr_decay", "eps", "weight_decay", "maximize"))


def update_adagrad(
    rule: AdagradRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adagrad."""
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    total = slots["sum"].addcmul(gradient, gradient)
    kept = {"step": slots["step"] + 1, "sum": total}
    return torch.addcdiv(parameter, gradient * scalars["step_size"], total.sqrt().add(rule.eps)), kept


KNOWN: Final = KnownOptimizer(adagrad_rule, update_adagrad, refuse_fused)

"""The arithmetic of `torch.optim.RAdam`."""

from __future__ import annotations

from typing import Final

import torch

from tallystick.frameworks.torch.optimizers.known import (
    Group,
    KnownOptimizer,
    Scalars,
    Tensors,
    Updated,
    decayed_either_way,
    pair,
    picked,
)
from tallystick.transcripts.optimizers.radam import RadamRule


def radam_rule(_optimizer: torch.optim.Optimizer, group: Group) -> RadamRule:
    """The rule of a group."""
    return RadamRule(
        betas=pair(group["betas"]),
        decoupled=group["decoupled_weight_decay"],
        **picked(group, "eps", "weight_decay", "maximize"),
    )


def update_radam(
    rule: RadamRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of RAdam: both of its branches, of which the rectification chooses one."""
    parameter, gradient = decayed_either_way(rule, parameter, gradient, scalars)
    first, second = rule.betas
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = (slots["exp_avg_sq"] * second).addcmul(gradient, gradient, value=1 - second)
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_avg_sq": square}
    move = mean / scalars["correction"] * scalars["learning_rate"]
    adaptive = square.sqrt().add(rule.eps).reciprocal() * scalars["root_correction"]
    rectified = move * adaptive * scalars["rectification"]
    return parameter - torch.where(scalars["rectification"] > 0, rectified, move), kept


KNOWN: Final = KnownOptimizer(radam_rule, update_radam)

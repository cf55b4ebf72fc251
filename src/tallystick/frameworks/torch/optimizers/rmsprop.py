"""The arithmetic of `torch.optim.RMSprop`."""

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
)
from tallystick.transcripts.optimizers.rmsprop import RmspropRule


def rmsprop_rule(_optimizer: torch.optim.Optimizer, group: Group) -> RmspropRule:
    """The rule of a group."""
    return RmspropRule(**picked(group, "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"))


def update_rmsprop(
    rule: RmspropRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of RMSprop."""
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    square = (slots["square_avg"] * rule.alpha).addcmul(gradient, gradient, value=1 - rule.alpha)
    kept = {"step": slots["step"] + 1, "square_avg": square}
    if rule.centered:
        kept["grad_avg"] = mean = slots["grad_avg"].lerp(gradient, 1 - rule.alpha)
        square = square.addcmul(mean, mean, value=-1)
    root = square.sqrt().add(rule.eps)
    if rule.momentum:
        kept["momentum_buffer"] = moving = (slots["momentum_buffer"] * rule.momentum).addcdiv(gradient, root)
        return torch.addcmul(parameter, moving, scalars["step_size"]), kept
    return torch.addcdiv(parameter, gradient * scalars["step_size"], root), kept


KNOWN: Final = KnownOptimizer(rmsprop_rule, update_rmsprop)

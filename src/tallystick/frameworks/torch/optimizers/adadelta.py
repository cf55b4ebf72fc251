"""The arithmetic of `torch.optim.Adadelta`."""

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
from tallystick.transcripts.optimizers.adadelta import AdadeltaRule


def adadelta_rule(_optimizer: torch.optim.Optimizer, group: Group) -> AdadeltaRule:
    """The rule of a group."""
    return AdadeltaRule(**picked(group, "rho", "eps", "weight_decay", "maximize"))


def update_adadelta(
    rule: AdadeltaRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adadelta."""
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    square = (slots["square_avg"] * rule.rho).addcmul(gradient, gradient, value=1 - rule.rho)
    root, moves = square.add(rule.eps).sqrt(), slots["acc_delta"].add(rule.eps).sqrt()
    move = moves / root * gradient
    kept = {
        "step": slots["step"] + 1,
        "square_avg": square,
        "acc_delta": (slots["acc_delta"] * rule.rho).addcmul(move, move, value=1 - rule.rho),
    }
    return torch.addcmul(parameter, move, scalars["step_size"]), kept


KNOWN: Final = KnownOptimizer(adadelta_rule, update_adadelta)

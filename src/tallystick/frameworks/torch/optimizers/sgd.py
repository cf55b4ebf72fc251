"""The arithmetic of `torch.optim.SGD`."""

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
from tallystick.transcripts.optimizers.sgd import SgdRule


def sgd_rule(_optimizer: torch.optim.Optimizer, group: Group) -> SgdRule:
    """The rule of a group."""
    return SgdRule(**picked(group, "weight_decay", "momentum", "nesterov", "maximize", "dampening"))


def update_sgd(
    rule: SgdRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of gradient descent."""
    kept: dict[str, torch.Tensor] = {}
    gradient = decayed(rule, parameter, gradient, rule.maximize)
    if rule.momentum:
        faded = slots["momentum_buffer"] * rule.momentum
        weakened = rule.dampening > 0
        moving = torch.addcmul(faded, gradient, scalars["gradient_share"]) if weakened else faded.add(gradient)
        kept["momentum_buffer"] = moving
        gradient = gradient.add(moving, alpha=rule.momentum) if rule.nesterov else moving
    return torch.addcmul(parameter, gradient, scalars["step_size"]), kept


def _begins_otherwise(rule: SgdRule) -> bool:
    return rule.momentum > 0 and rule.dampening > 0


KNOWN: Final = KnownOptimizer(sgd_rule, update_sgd, refuse_fused, True, _begins_otherwise)

"""The arithmetic of `lion_pytorch.Lion`."""

from __future__ import annotations

from typing import Any, Final

import torch

from tallystick.frameworks.torch.optimizers.known import Group, KnownOptimizer, Scalars, Tensors, Updated, pair
from tallystick.transcripts.optimizers.lion import LionRule


def lion_rule(optimizer: Any, group: Group) -> LionRule:
    """The rule of a group; a decay that is independent of the learning rate is divided by the first one."""
    decay = group["weight_decay"]
    return LionRule(
        betas=pair(group["betas"]), weight_decay=decay / optimizer._init_lr if optimizer.decoupled_wd else decay
    )


def update_lion(
    rule: LionRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Lion."""
    (first, second), mean = rule.betas, slots["exp_avg"]
    sign = (mean * first).add(gradient, alpha=1.0 - first).sgn()
    moved = torch.addcmul(parameter * scalars["decay"], sign, scalars["step_size"])
    return moved, {"exp_avg": (mean * second).add(gradient, alpha=1.0 - second)}


KNOWN: Final = KnownOptimizer(lion_rule, update_lion)

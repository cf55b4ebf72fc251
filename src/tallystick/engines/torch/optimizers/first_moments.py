"""The arithmetic of optimizers that keep momentum alone: SGD, Lion and Muon."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from tallystick.engines.torch.optimizers.catalogue import (
    Group,
    KnownOptimizer,
    Scalars,
    Tensors,
    Updated,
    decayed,
    pair,
    picked,
    refuse_fused,
)
from tallystick.formats.optimizers import LionRule, MuonRule, SgdRule

# The arithmetic of `torch.optim.SGD`.


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


SGD: Final = KnownOptimizer(sgd_rule, update_sgd, refuse_fused, True, _begins_otherwise)


# The arithmetic of `lion_pytorch.Lion`.


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


LION: Final = KnownOptimizer(lion_rule, update_lion)


# The arithmetic of `torch.optim.Muon`.


def muon_rule(_optimizer: torch.optim.Optimizer, group: Group) -> MuonRule:
    """The rule of a group."""
    return MuonRule(
        coefficients=tuple(group["ns_coefficients"]),
        steps=group["ns_steps"],
        adjust=group["adjust_lr_fn"] or "original",
        **picked(group, "weight_decay", "momentum", "nesterov", "eps"),
    )


def update_muon(
    rule: MuonRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Muon for a matrix."""
    moving = slots["momentum_buffer"].lerp(gradient, 1 - rule.momentum)
    move = _orthogonal(rule, gradient.lerp(moving, rule.momentum) if rule.nesterov else moving)
    size = (scalars.exact["step_size"] * _growth(rule, *parameter.shape)).to(parameter.dtype)
    moved = torch.addcmul(parameter * scalars["decay"], move.to(parameter.dtype), size)
    return moved, {"momentum_buffer": moving}


def _growth(rule: MuonRule, rows: int, columns: int) -> float:
    if rule.adjust == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def _orthogonal(rule: MuonRule, matrix: torch.Tensor) -> torch.Tensor:
    """Newton–Schulz iterations in bfloat16, of the matrix or its transpose, whichever is wide."""
    a, b, c = rule.coefficients
    is_tall = matrix.size(0) > matrix.size(1)
    found = matrix.bfloat16().T if is_tall else matrix.bfloat16()
    found = found / found.norm().clamp(min=rule.eps)
    for _ in range(rule.steps):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if is_tall else found


MUON: Final = KnownOptimizer(muon_rule, update_muon)

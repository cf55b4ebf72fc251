"""The arithmetic of `torch.optim.NAdam`."""

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
from tallystick.transcripts.optimizers.nadam import NadamRule


def nadam_rule(_optimizer: torch.optim.Optimizer, group: Group) -> NadamRule:
    """The rule of a group."""
    return NadamRule(
        betas=pair(group["betas"]),
        decoupled=group["decoupled_weight_decay"],
        **picked(group, "eps", "weight_decay", "momentum_decay", "maximize"),
    )


def update_nadam(
    rule: NadamRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of NAdam; the sizes of both moves follow from the product of momenta in float64."""
    parameter, gradient = decayed_either_way(rule, parameter, gradient, scalars)
    first, second = rule.betas
    product = slots["mu_product"] * scalars.exact["mu"].to(torch.float32)
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = (slots["exp_avg_sq"] * second).addcmul(gradient, gradient, value=1 - second)
    kept = {"step": slots["step"] + 1, "mu_product": product, "exp_avg": mean, "exp_avg_sq": square}
    root = (square / scalars["correction"]).sqrt().add(rule.eps)
    wide = product.to(torch.float64)
    of_gradient = scalars.exact["gradient_size"] / (1.0 - wide)
    of_mean = scalars.exact["mean_size"] / (1.0 - wide * scalars.exact["mu_next"])
    moved = torch.addcdiv(parameter, gradient * of_gradient.to(parameter.dtype), root)
    return torch.addcdiv(moved, mean * of_mean.to(parameter.dtype), root), kept


KNOWN: Final = KnownOptimizer(nadam_rule, update_nadam)

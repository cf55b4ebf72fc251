"""The arithmetic of `torch.optim.Adam` and `AdamW`, also with their fused kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from tallystick.frameworks.torch.fused_adam import fused_adam
from tallystick.frameworks.torch.optimizers.known import Group, KnownOptimizer, Scalars, Tensors, Updated, picked, wide
from tallystick.transcripts.optimizers.adam import AdamRule


def adam_rule(_optimizer: torch.optim.Optimizer, group: Group) -> AdamRule:
    """The rule of a group."""
    rate, (first, second) = group["lr"], group["betas"]
    is_single = isinstance(rate, torch.Tensor) and rate.dtype == torch.float32 and not group["fused"]
    return AdamRule(
        kind="adamw" if group["decoupled_weight_decay"] else "adam",
        betas=(first, second),
        fused=bool(group["fused"]),
        rate_dtype="F32" if is_single else None,
        **picked(group, "eps", "weight_decay", "maximize", "amsgrad"),
    )


def _refused(group: Group) -> Iterator[tuple[str, str]]:
    if group["fused"] and group["amsgrad"]:
        yield "fused=True", "set fused=False"
    rate = group["lr"]
    if isinstance(rate, torch.Tensor) and rate.dtype not in {torch.float32, torch.float64}:
        yield f"a tensor of {rate.dtype} as lr", "give a float"


def update_adam(
    rule: AdamRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adam, AdamW or AMSGrad."""
    if rule.fused:
        return _fused(rule, parameter, gradient, slots, scalars)
    gradient = -gradient if rule.maximize else gradient
    first, second = rule.betas
    if rule.weight_decay and rule.kind == "adamw":
        parameter = (wide(parameter) * scalars.wide["decay"]).to(parameter.dtype)
    elif rule.weight_decay:
        gradient = gradient.add(parameter, alpha=rule.weight_decay)
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = (slots["exp_avg_sq"] * second).addcmul(gradient, gradient, value=1 - second)
    kept = {"step": slots["step"] + 1, "exp_avg": mean, "exp_avg_sq": square}
    if rule.amsgrad:
        kept["max_exp_avg_sq"] = square = torch.maximum(slots["max_exp_avg_sq"], square)
    denominator = (wide(square.sqrt()) / scalars.wide["root_correction"]).to(square.dtype).add(rule.eps)
    moved = torch.addcdiv(wide(parameter), wide(mean) * scalars.wide["step_size"], wide(denominator))
    return moved.to(parameter.dtype), kept


def _fused(
    rule: AdamRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One kernel for all of Adam, which rounds otherwise than single operators, and its scalars itself."""
    step, (first, second) = slots["step"] + 1, rule.betas
    tensors = (parameter, gradient, slots["exp_avg"], slots["exp_avg_sq"], step, scalars.exact["learning_rate"])
    settings = (first, second, rule.eps, rule.weight_decay, rule.kind == "adamw", rule.maximize)
    moved, mean, square = fused_adam(*tensors, *settings)
    return moved, {"step": step, "exp_avg": mean, "exp_avg_sq": square}


KNOWN: Final = KnownOptimizer(adam_rule, update_adam, _refused, takes_tensor_rate=True)

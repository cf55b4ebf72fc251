"""The arithmetic of `torch.optim`, for one parameter at a time and without writing in place.

Each operation is the one of PyTorch's single-tensor code, in the same order, so the results have the same bits. Values
that depend on the step number are 0-dimensional tensors. `addcmul` and `addcdiv` replace the addition of a multiple by
a Python number: they round and fuse as `add` with `alpha` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import torch

from tallystick.errors import UnavailableError
from tallystick.workloads.optimizer import UpdateRule

Tensors: TypeAlias = Mapping[str, torch.Tensor]
UNSUPPORTED: Final = ("amsgrad", "capturable", "differentiable", "fused")


def rule_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> UpdateRule:
    """The rule of one parameter group; raises `UnavailableError` if its arithmetic is not supported."""
    refused = [name for name in UNSUPPORTED if group.get(name)]
    if refused or group.get("dampening"):
        raise UnavailableError(f"{type(optimizer).__name__} with {(refused or ['dampening'])[0]} cannot be captured")
    if isinstance(group["lr"], torch.Tensor):
        raise UnavailableError(f"{type(optimizer).__name__} with a tensor as learning rate cannot be captured")
    if type(optimizer) is torch.optim.SGD:
        settings = {name: group[name] for name in ("weight_decay", "momentum", "nesterov", "maximize")}
        return UpdateRule("sgd", **settings)
    if type(optimizer) in {torch.optim.AdamW, torch.optim.Adam}:
        kind: Literal["adamw", "adam"] = "adamw" if group["decoupled_weight_decay"] else "adam"
        return UpdateRule(kind, group["betas"], group["eps"], group["weight_decay"], maximize=group["maximize"])
    raise UnavailableError(f"{type(optimizer).__name__} cannot be captured: AdamW, Adam and SGD can")


def update(
    rule: UpdateRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Tensors
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The parameter and its slots after one step.

    Args:
        rule: the settings of its group.
        parameter: any shape, a float dtype.
        gradient: of the parameter's shape and dtype.
        slots: the tensors that `rule.slots` names.
        scalars: the tensors that `schedule_scalars` names, 0-dimensional and of the parameter's dtype.
    """
    signed = -gradient if rule.maximize else gradient
    return _UPDATES[rule.kind](rule, parameter, signed, slots, scalars)


def _adam(
    rule: UpdateRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Tensors
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    first, second = rule.betas
    if rule.weight_decay and rule.kind == "adamw":
        parameter = parameter * scalars["decay"]
    elif rule.weight_decay:
        gradient = gradient.add(parameter, alpha=rule.weight_decay)
    mean = slots["exp_avg"].lerp(gradient, 1 - first)
    square = (slots["exp_avg_sq"] * second).addcmul(gradient, gradient, value=1 - second)
    denominator = (square.sqrt() / scalars["root_correction"]).add(rule.eps)
    moved = torch.addcdiv(parameter, mean * scalars["step_size"], denominator)
    return moved, {"step": slots["step"] + 1, "exp_avg": mean, "exp_avg_sq": square}


def _sgd(
    rule: UpdateRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Tensors
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    kept: dict[str, torch.Tensor] = {}
    if rule.weight_decay:
        gradient = gradient.add(parameter, alpha=rule.weight_decay)
    if rule.momentum:
        kept["momentum_buffer"] = (slots["momentum_buffer"] * rule.momentum).add(gradient)
        moving = kept["momentum_buffer"]
        gradient = gradient.add(moving, alpha=rule.momentum) if rule.nesterov else moving
    return torch.addcmul(parameter, gradient, scalars["step_size"]), kept


_UPDATES: Final[Mapping[str, Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]]]] = {
    "adam": _adam,
    "adamw": _adam,
    "sgd": _sgd,
}

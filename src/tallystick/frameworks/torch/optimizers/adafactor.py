"""The arithmetic of `torch.optim.Adafactor`."""

from __future__ import annotations

from typing import Final

import torch

from tallystick.frameworks.torch.optimizers.known import Group, KnownOptimizer, Scalars, Tensors, Updated, picked
from tallystick.transcripts.optimizers.adafactor import AdafactorRule


def adafactor_rule(_optimizer: torch.optim.Optimizer, group: Group) -> AdafactorRule:
    """The rule of a group."""
    first, second = group["eps"]
    return AdafactorRule(
        eps1=first, eps2=second, clip=group["d"], **picked(group, "beta2_decay", "weight_decay", "maximize")
    )


def update_adafactor(
    rule: AdafactorRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adafactor; norms become numbers of Python, so what follows from them is computed in float64."""
    gradient = -gradient if rule.maximize else gradient
    least = torch.finfo(parameter.dtype).eps if rule.eps1 is None else rule.eps1
    size = (parameter.norm(2).double() / parameter.numel() ** 0.5).clamp(min=rule.eps2) * scalars.exact["rho"]
    if rule.weight_decay:
        parameter = parameter * scalars["decay"]
    moments, estimate = _second_moment(gradient, slots, scalars["moment_share"], least)
    move = estimate.clamp(min=least * least).rsqrt() * gradient
    limit = (move.norm(2).double() / (move.numel() ** 0.5 * rule.clip)).clamp(min=1.0)
    kept = {"step": slots["step"] + 1, **moments}
    return torch.addcmul(parameter, move, (-size / limit).to(parameter.dtype)), kept


def _second_moment(
    gradient: torch.Tensor, slots: Tensors, share: torch.Tensor, least: float
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The slots of the second moment, and its estimate of the gradient's shape."""
    if gradient.dim() < 2:
        variance = torch.lerp(slots["variance"], gradient * gradient, share)
        return {"variance": variance}, variance
    rows = torch.norm(gradient, dim=-1, keepdim=True).square() / gradient.size(-1)
    columns = torch.norm(gradient, dim=-2, keepdim=True).square() / gradient.size(-2)
    row, column = torch.lerp(slots["row_var"], rows, share), torch.lerp(slots["col_var"], columns, share)
    return {"row_var": row, "col_var": column}, row @ column / row.mean(dim=-2, keepdim=True).clamp(min=least)


KNOWN: Final = KnownOptimizer(adafactor_rule, update_adafactor)

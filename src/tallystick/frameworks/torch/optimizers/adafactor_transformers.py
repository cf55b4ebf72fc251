"""The arithmetic of `transformers.Adafactor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from tallystick.frameworks.torch.optimizers.known import Group, KnownOptimizer, Scalars, Tensors, Updated, pair, picked
from tallystick.transcripts.optimizers.adafactor_transformers import TransformersAdafactorRule


def adafactor_rule(_optimizer: torch.optim.Optimizer, group: Group) -> TransformersAdafactorRule:
    """The rule of a group."""
    names = ("clip_threshold", "decay_rate", "beta1", "weight_decay", "scale_parameter", "relative_step", "warmup_init")
    return TransformersAdafactorRule(eps=pair(group["eps"]), **picked(group, *names))


def _refused(group: Group) -> Iterator[tuple[str, str]]:
    """A tensor as learning rate, but where none is read: `AdafactorSchedule` writes its own into the group."""
    if isinstance(group["lr"], torch.Tensor) and not group["relative_step"]:
        yield "a tensor as lr", "give a float"


def update_adafactor(
    rule: TransformersAdafactorRule, parameter: torch.Tensor, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> Updated:
    """One step of Adafactor."""
    root, decay = _root_mean_square(parameter), -rule.weight_decay
    kept = {"step": slots["step"] + 1, "RMS": root}
    moments, move = _scaled(rule, gradient, slots, scalars)
    kept |= moments
    move = move / (_root_mean_square(move) / rule.clip_threshold).clamp(min=1.0)
    move = move * _of_rate(rule, root, scalars, 1.0)
    if rule.beta1 is not None:
        kept["exp_avg"] = move = (slots["exp_avg"] * rule.beta1).add(move, alpha=1 - rule.beta1)
    if rule.weight_decay:
        parameter = torch.addcmul(parameter, parameter, _of_rate(rule, root, scalars, decay))
    return parameter + -move, kept


def _scaled(
    rule: TransformersAdafactorRule, gradient: torch.Tensor, slots: Tensors, scalars: Scalars
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The slots of the second moment, and the gradient divided by its root."""
    square = gradient**2 + rule.eps[0]
    if gradient.dim() < 2:
        moment = _faded(slots["exp_avg_sq"], square, scalars)
        return {"exp_avg_sq": moment}, moment.rsqrt() * gradient
    row = _faded(slots["exp_avg_sq_row"], square.mean(dim=-1), scalars)
    column = _faded(slots["exp_avg_sq_col"], square.mean(dim=-2), scalars)
    shares = (row / row.mean(dim=-1, keepdim=True)).rsqrt().unsqueeze(-1)
    return {"exp_avg_sq_row": row, "exp_avg_sq_col": column}, shares * column.unsqueeze(-2).rsqrt() * gradient


def _faded(moment: torch.Tensor, found: torch.Tensor, scalars: Scalars) -> torch.Tensor:
    return torch.addcmul(moment * scalars["moment_decay"], found, scalars["moment_share"])


def _of_rate(rule: TransformersAdafactorRule, root: torch.Tensor, scalars: Scalars, factor: float) -> torch.Tensor:
    """The learning rate times `factor` in float32: of a number of Python, or of the tensor that scales it."""
    if not rule.scale_parameter:
        return (scalars.exact["rate"] * factor).to(root.dtype)
    least = rule.eps[1]
    return torch.where(
        root > least, root * scalars["rate"] * factor, (scalars.exact["rate"] * least * factor).to(root.dtype)
    )


def _root_mean_square(values: torch.Tensor) -> torch.Tensor:
    root: torch.Tensor = values.norm(2) / values.numel() ** 0.5
    return root


KNOWN: Final = KnownOptimizer(adafactor_rule, update_adafactor, _refused, takes_tensor_rate=True)

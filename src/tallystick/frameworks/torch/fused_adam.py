"""The operator `tally.fused_adam` by PyTorch's own fused kernel, which has roundings of its own."""

from __future__ import annotations

import torch


@torch.library.custom_op(
    "tally::fused_adam",
    mutates_args=(),
    schema="(Tensor weight, Tensor gradient, Tensor exp_avg, Tensor exp_avg_sq, Tensor step, Tensor learning_rate, "
    "float beta1, float beta2, float eps, float weight_decay, bool decoupled, bool maximize) "
    "-> (Tensor, Tensor, Tensor)",
)
def fused_adam(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: torch.Tensor,
    learning_rate: torch.Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weight, exp_avg and exp_avg_sq after the step; `step` counts it already."""
    moved, mean, square = weight.clone(), exp_avg.clone(), exp_avg_sq.clone()
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        [moved],
        [gradient],
        [mean],
        [square],
        [],
        [step],
        amsgrad=False,
        lr=learning_rate.item(),
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        maximize=maximize,
    )
    return moved, mean, square


@fused_adam.register_fake
def _fake(weight: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(weight), torch.empty_like(weight), torch.empty_like(weight)

"""The arithmetic of `torch.optim.Muon`."""

from __future__ import annotations

import math
from typing import Final

import torch

from tallystick.frameworks.torch.optimizers.known import Group, KnownOptimizer, Scalars, Tensors, Updated, picked
from tallystick.transcripts.optimizers.muon import MuonRule


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


KNOWN: Final = KnownOptimizer(muon_rule, update_muon)

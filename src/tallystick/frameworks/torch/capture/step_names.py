"""The names of a captured step's inputs: those of a run's states, batches and schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from tallystick.graphs.graph import Role
from tallystick.transcripts.rule import GroupRule
from tallystick.workloads.names import BATCH, GENERATOR_MOVE, STATE_PREFIXES
from tallystick.workloads.optimizer import schedule_scalars

ROLES: Final = {
    "weights": Role.WEIGHT,
    "buffers": Role.BUFFER,
    "optimizer": Role.OPTIMIZER,
    "ema": Role.OPTIMIZER,
    "position": Role.OPTIMIZER,
    "schedule": Role.SCHEDULE,
    "rng": Role.RNG,
    "inputs": Role.INPUT,
}
"""The role of an input by the first word of its name."""


def role_of(name: str) -> Role:
    """The role of the input `name`."""
    return ROLES[name.partition(".")[0]]


def is_state(name: str) -> bool:
    """Whether the tensor is part of the state that the next step reads."""
    return name.startswith(STATE_PREFIXES)


def batch_prefix(index: int, accumulation: int) -> str:
    """The prefix of the names of micro-batch `index`."""
    return "inputs." if accumulation == 1 else f"inputs.{index}."


def batch_of(tensors: Mapping[str, torch.Tensor], index: int, accumulation: int) -> dict[str, torch.Tensor]:
    """Micro-batch `index`, by the names that the loss uses."""
    prefix = batch_prefix(index, accumulation)
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix) and name != BATCH + GENERATOR_MOVE
    }


def group_suffix(index: int, count: int) -> str:
    """The suffix of the names of scalars: empty for a single group of parameters, else the group's index."""
    return "" if count == 1 else f".{index}"


def named_scalars(rules: Sequence[GroupRule], learning_rates: Sequence[float], step: int) -> dict[str, float]:
    """The scalars of step `step` (1-based) of every group, by the names of the graph."""
    return {
        f"schedule.{name}{group_suffix(index, len(rules))}": value
        for index, (rule, rate) in enumerate(zip(rules, learning_rates, strict=True))
        for name, value in schedule_scalars(rule, rate, step).items()
    }

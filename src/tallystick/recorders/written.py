"""Tells by PyTorch's version counters whether tensors were written to since the last look; no values are read.

A write through `.data` is not counted. Replays of random steps find it, and so does a record of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

Marks: TypeAlias = dict[str, tuple[torch.Tensor, int, int]]
"""A tensor by its name in the state, where its memory lies, and how often it was written to."""


def marks_of(tensors: Mapping[str, torch.Tensor]) -> Marks:
    """The marks of tensors as they are now; keeps them alive, so that none takes the place of another unseen."""
    return {name: (value, value.data_ptr(), value._version) for name, value in tensors.items()}


def written(before: Marks, now: Marks) -> list[str]:
    """The names of what was written to, exchanged, added or taken away between two looks."""
    return [name for name in sorted(before.keys() | now.keys()) if not _is_same(before, now, name)]


def writes(before: Marks, now: Marks) -> dict[str, int]:
    """How often each tensor was written to between two looks; another tensor in its place counts as -1."""
    return {
        name: now[name][2] - before[name][2] if name in before and now[name][0] is before[name][0] else -1
        for name in now
    }


def parameters_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a model by their names in the state."""
    return {f"weights.{name}": value for name, value in model.named_parameters()}


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a model by their names in the state."""
    return {f"buffers.{name}": value for name, value in model.named_buffers()}


def slots_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """What an optimizer keeps of the parameters of a model, by its names in the state; numbers are left out."""
    return {
        f"optimizer.{name}.{slot}": value
        for name, parameter in model.named_parameters()
        for slot, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def _is_same(before: Marks, now: Marks, name: str) -> bool:
    if name not in before or name not in now:
        return False
    (old, *was), (new, *is_now) = before[name], now[name]
    return old is new and was == is_now

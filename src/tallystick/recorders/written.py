"""Finds writes to tensors by PyTorch's version counters, without reading values.

A write through `.data` is not counted. Replays of random steps find it, and so does the summary of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

Marks: TypeAlias = dict[str, tuple[torch.Tensor, int, int]]
"""By name in the state: a tensor, the address of its memory, and its version counter."""


def marks_of(tensors: Mapping[str, torch.Tensor]) -> Marks:
    """The current marks of tensors. They keep the tensors alive, so no other tensor can reuse an address unseen."""
    return {name: (value, value.data_ptr(), value._version) for name, value in tensors.items()}


def written(before: Marks, now: Marks) -> list[str]:
    """The sorted names of tensors that were written to, exchanged, added or removed between two marks."""
    return [name for name in sorted(before.keys() | now.keys()) if not _is_same(before, now, name)]


def writes(before: Marks, now: Marks) -> dict[str, int]:
    """How often each tensor was written to between two marks; -1 if it is new or was exchanged."""
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
    """The tensors that an optimizer keeps for the parameters of a model, by their names in the state."""
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

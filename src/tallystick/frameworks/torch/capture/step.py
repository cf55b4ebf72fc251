"""What one training step is, before it is captured: a model, a loss, an optimizer, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import nn

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.updates import rule_of
from tallystick.workloads.optimizer import UpdateRule

Batch: TypeAlias = Mapping[str, torch.Tensor]
Loss: TypeAlias = Callable[[Any, Batch], torch.Tensor]
"""From something that is called as the model is, and a batch, to one number."""
Objective: TypeAlias = Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor | None]]
"""A loss, and what is watched besides it."""
Precision: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Begins the context in which the model runs forward, `torch.autocast` for example."""


@dataclass(frozen=True)
class TrainingStep:
    """Everything of a step but its tensors."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    clip_norm: float | None = None
    accumulation: int = 1
    seeded: bool = False
    precision: Precision = nullcontext

    @cached_property
    def rules(self) -> tuple[UpdateRule, ...]:
        """The rule of each parameter group; raises `UnavailableError` for an optimizer that is not known here."""
        return tuple(rule_of(self.optimizer, group) for group in self.optimizer.param_groups)

    @property
    def trained(self) -> list[str]:
        """The names of the parameters that ask for a gradient."""
        return [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    @property
    def groups(self) -> list[list[str]]:
        """The names of the parameters of each group; raises `UnavailableError` for one that is not the model's."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        groups = [list(group["params"]) for group in self.optimizer.param_groups]
        if not all(parameter in names for group in groups for parameter in group):
            raise UnavailableError("the optimizer holds a parameter that is none of the model's")
        return [[names[parameter] for parameter in group] for group in groups]

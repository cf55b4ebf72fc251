"""The parts of a training step before capture: model, loss, optimizer, and settings."""

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
"""Takes the model, or a stand-in that is called like it, and a batch; returns a scalar."""
Objective: TypeAlias = Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor | None]]
"""Returns a loss, and a tensor to observe if there is one."""
Precision: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Returns the context of the forward pass, for example `torch.autocast`."""


@dataclass(frozen=True)
class TrainingStep:
    """The definition of a step without its tensors."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    clip_norm: float | None = None
    accumulation: int = 1
    seeded: bool = False
    precision: Precision = nullcontext

    @cached_property
    def rules(self) -> tuple[UpdateRule, ...]:
        """The rule of each parameter group; raises `UnavailableError` for an unsupported optimizer."""
        return tuple(rule_of(self.optimizer, group) for group in self.optimizer.param_groups)

    @property
    def trained(self) -> list[str]:
        """The names of the parameters that require a gradient."""
        return [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    @property
    def groups(self) -> list[list[str]]:
        """The names of the parameters of each group; raises `UnavailableError` for one that the model does not have."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        groups = [list(group["params"]) for group in self.optimizer.param_groups]
        if not all(parameter in names for group in groups for parameter in group):
            raise UnavailableError("the optimizer holds a parameter that is none of the model's")
        return [[names[parameter] for parameter in group] for group in groups]

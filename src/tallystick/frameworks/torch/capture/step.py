"""The parts of a training step before capture: model, loss, optimizer, and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.edits import NO_EDITS, Edits
from tallystick.frameworks.torch.optimizers.catalogue import rules_of
from tallystick.transcripts.rule import GroupRule

if TYPE_CHECKING:
    from tallystick.frameworks.torch.ema import Ema

Batch: TypeAlias = Mapping[str, torch.Tensor]
Loss: TypeAlias = Callable[[Any, Batch], torch.Tensor]
"""Takes the model, or a stand-in that is called like it, and a batch; returns a scalar."""
Objective: TypeAlias = Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor | None]]
"""Returns a loss, and a tensor to observe if there is one."""
Reduction: TypeAlias = Literal["mean", "sum"]
"""How the losses of micro-batches make the loss of a step: with "sum", each is already its share of it."""
Draws: TypeAlias = Literal["nothing", "seed", "generator"]
"""What dropout draws from: a stream by the input `rng.seed`, or PyTorch's generator, whose state is part of the run."""
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
    draws: Draws = "nothing"
    precision: Precision = nullcontext
    reduction: Reduction = "mean"
    ema: Ema | None = None
    edits: Edits = NO_EDITS

    def reduced(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss of the step, from those of its micro-batches."""
        stacked = torch.stack(list(losses))
        return losses[0] if len(losses) == 1 else stacked.mean() if self.reduction == "mean" else stacked.sum()

    def share(self, loss: torch.Tensor) -> torch.Tensor:
        """What a micro-batch is differentiated by: its share of the loss of the step."""
        return loss / self.accumulation if self.accumulation > 1 and self.reduction == "mean" else loss

    @cached_property
    def rules(self) -> tuple[GroupRule, ...]:
        """The rule of each parameter group; raises `UnavailableError` for an unsupported optimizer."""
        return rules_of(self.optimizer)

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

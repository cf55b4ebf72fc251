"""What a step writes into gradients before the optimizer, and into weights after it, beside the optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import torch

Tensors: TypeAlias = Mapping[str, torch.Tensor]
Edit: TypeAlias = Callable[[Tensors], dict[str, torch.Tensor]]
"""Takes the tensors of a step by name, and returns those that it changes; the ones that it is given stay as they are.

Names are those of a state, and `gradients.<parameter>`.
"""
GRADIENTS: Final = "gradients."


@dataclass(frozen=True)
class Edits:
    """The edits of gradients and of weights; `None` for nothing.

    The counts say how often each tensor is written to, by PyTorch's version counters. `reads_back` means that the loop
    reads numbers from tensors meanwhile: they are constants of the edits.
    """

    gradients: Edit | None = None
    weights: Edit | None = None
    gradient_writes: Mapping[str, int] = field(default_factory=dict)
    weight_writes: Mapping[str, int] = field(default_factory=dict)
    reads_back: bool = False
    default_writes: int = 0
    """How often a gradient is written to that has no count."""

    def edited(self, gradients: Tensors, state: Tensors) -> dict[str, torch.Tensor]:
        """The gradients that are changed, as the optimizer receives them."""
        if self.gradients is None:
            return {}
        results = self.gradients({**state, **_as_named(gradients)})
        return {name.removeprefix(GRADIENTS): value for name, value in results.items()}

    def edited_weights(self, gradients: Tensors, state: Tensors) -> dict[str, torch.Tensor]:
        """The weights that are changed after the optimizer's step, by their names in the state."""
        return {} if self.weights is None else self.weights({**state, **_as_named(gradients)})


def _as_named(gradients: Tensors) -> dict[str, torch.Tensor]:
    return {f"{GRADIENTS}{name}": value for name, value in gradients.items()}


NO_EDITS: Final = Edits()


@dataclass(frozen=True)
class ClippedValues:
    """Every gradient clipped to [-limit, limit], as by `clip_grad_value_`."""

    limit: float

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """The clipped gradients."""
        found = {name: value for name, value in tensors.items() if name.startswith(GRADIENTS)}
        return {name: value.clamp_min(-self.limit).clamp_max(self.limit) for name, value in found.items()}

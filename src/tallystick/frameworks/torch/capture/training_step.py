"""Captures forward, backward and optimizer of one training step as one functional graph.

Replaying the graph with the kernels of the same stack gives the bits of the native loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tallystick.errors import UsageError
from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.module_trail import ModuleTrail
from tallystick.frameworks.torch.capture.step import Batch, Loss, TrainingStep
from tallystick.frameworks.torch.capture.step_capture import captured_step


def capture_training_step(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    batch: Batch | Sequence[Batch],
    *,
    clip_norm: float | None = None,
    accumulation: int = 1,
    seeded: bool = False,
) -> CapturedStep:
    """One step of `model` as a graph: `loss(model, batch)`, its gradients, clipping, the optimizer.

    Inputs are the state by its usual names, `inputs.<name>` (`inputs.<k>.<name>` for micro-batch k of several) and
    `schedule.<name>`. Outputs are the state, `loss`, `gradient_norm`, and `gradients.<parameter>` as the optimizer
    receives them. A parameter without a gradient is skipped, as in `torch.optim`.

    Args:
        model: in training mode; it is neither changed nor moved.
        loss: calls the model it is given on a batch, and returns one number.
        optimizer: AdamW, Adam or SGD over parameters of `model`.
        batch: example tensors by name; only shapes and dtypes matter, and all micro-batches share them.
        clip_norm: the limit for `clip_grad_norm_` before the optimizer's step.
        accumulation: the number of micro-batches; each loss is divided by it.
        seeded: dropout draws from the input `rng.seed`, see `explicit_randomness`.

    Raises:
        UnavailableError: something in the step cannot be captured, and the line names the operator or the control flow;
            or the graph does not give the bits of the eager step on `batch`.
        UsageError: `batch` is not a mapping from names to tensors.
    """

    def objective(called: Any, examples: Batch) -> tuple[torch.Tensor, None]:
        return loss(called, examples), None

    step = TrainingStep(model, optimizer, objective, clip_norm, accumulation, seeded)
    return captured_step(step, _first(batch), ModuleTrail())


def _first(batch: Batch | Sequence[Batch]) -> dict[str, torch.Tensor]:
    """The first micro-batch; raises `UsageError` unless it is a mapping from names to tensors."""
    examples = batch if isinstance(batch, Mapping) or not len(batch) else batch[0]
    if not isinstance(examples, Mapping) or not all(isinstance(value, torch.Tensor) for value in examples.values()):
        raise UsageError('a batch is a mapping from names to tensors, such as {"x": x, "y": y}')
    return dict(examples)

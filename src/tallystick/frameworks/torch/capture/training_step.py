"""Captures forward, backward and optimizer of one training step as one functional graph.

Replaying the graph with the kernels of the same stack gives the bits of the native loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tallystick.errors import UsageError
from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.edits import NO_EDITS, Edits
from tallystick.frameworks.torch.capture.module_trail import ModuleTrail
from tallystick.frameworks.torch.capture.step import Batch, Draws, Loss, Precision, Reduction, TrainingStep
from tallystick.frameworks.torch.capture.step_capture import captured_step

if TYPE_CHECKING:
    from tallystick.frameworks.torch.ema import Ema


def capture_training_step(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    batch: Batch | Sequence[Batch],
    *,
    clip_norm: float | None = None,
    accumulation: int = 1,
    draws: Draws = "nothing",
    precision: Precision = nullcontext,
    reduction: Reduction = "mean",
    ema: Ema | None = None,
    edits: Edits = NO_EDITS,
) -> CapturedStep:
    """One step of `model` as a graph: `loss(model, batch)`, its gradients, clipping, the optimizer.

    Inputs are the state by its usual names, `inputs.<name>` (`inputs.<k>.<name>` for micro-batch k of several) and
    `schedule.<name>`. Outputs are the state, `loss`, `gradient_norm`, and `gradients.<parameter>` as the optimizer
    receives them. A parameter without a gradient is skipped, as in `torch.optim`.

    Args:
        model: in training mode; it is neither changed nor moved.
        loss: calls the model it is given on a batch, and returns one number.
        optimizer: AdamW, Adam or SGD over parameters of `model`.
        batch: example tensors by name; only shapes and dtypes matter. A list has an example for each micro-batch, and
            one example stands for all of them.
        clip_norm: the limit for `clip_grad_norm_` before the optimizer's step.
        accumulation: the number of micro-batches.
        draws: "seed" if dropout draws from the input `rng.seed`, see `explicit_randomness`; "generator" if it draws as
            PyTorch does on a CPU, from the state `position.generator`.
        precision: returns the context of the forward pass, for example `torch.autocast`; the model itself sets none.
        reduction: with "mean", the loss of a micro-batch is divided by their number; with "sum", it is a share already.
        ema: averages of the weights that the loop keeps: the state then holds them too.
        edits: what the loop writes into gradients or weights besides.

    Raises:
        UnavailableError: something in the step cannot be captured, and the line names the operator or the control flow;
            or the graph does not give the bits of the eager step on `batch`.
        UsageError: `batch` is not a mapping from names to tensors.
    """

    def objective(called: Any, examples: Batch) -> tuple[torch.Tensor, None]:
        return loss(called, examples), None

    step = TrainingStep(model, optimizer, objective, clip_norm, accumulation, draws, precision, reduction, ema, edits)
    return captured_step(step, _examples(batch, accumulation), ModuleTrail())


def _examples(batch: Batch | Sequence[Batch], count: int) -> list[Batch]:
    """An example for each micro-batch; raises `UsageError` unless each is a mapping from names to tensors."""
    given = [batch] if isinstance(batch, Mapping) else list(batch)
    if not given or not all(map(_is_batch, given)):
        raise UsageError('a batch is a mapping from names to tensors, such as {"x": x, "y": y}')
    if len(given) not in {1, count}:
        raise UsageError(f"{len(given)} examples are given for {count} micro-batches")
    return [dict(each) for each in (given if len(given) == count else given * count)]


def _is_batch(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(value, torch.Tensor) for value in given.values())

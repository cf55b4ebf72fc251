"""Forward, backward and optimizer of one training step, captured as one functional graph.

Replaying the graph with the kernels of the stack it was captured on gives the bits of the native loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from tallystick.errors import UsageError
from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.step import Batch, Loss, TrainingStep
from tallystick.frameworks.torch.capture.step_capture import captured_step
from tallystick.frameworks.torch.models import labels_of, logits_of
from tallystick.frameworks.torch.training.trainer import Trainer
from tallystick.transcripts.recipe import Recipe

__all__ = ["CapturedStep", "Loss", "capture_recipe_step", "capture_training_step"]


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
    `schedule.<name>`. Outputs are the state, `loss`, `gradient_norm` and `gradients.<parameter>` as the optimizer gets
    them. A parameter without a gradient is skipped, as `torch.optim` does.

    Args:
        model: in the mode it is trained in; it is neither changed nor moved.
        loss: calls the model it is given on a batch, and returns one number.
        optimizer: AdamW, Adam or SGD over parameters of `model`.
        batch: example tensors by name; shapes and dtypes count. All micro-batches have them.
        clip_norm: as `clip_grad_norm_` is called before the optimizer steps.
        accumulation: the number of micro-batches; each loss is divided by it.
        seeded: dropout draws from the input `rng.seed`, see `explicit_randomness`.

    Raises:
        UnavailableError: something in the step cannot be captured, and the line names the operator or the control flow;
            or the graph has not the bits of the eager step on `batch`.
        UsageError: `batch` holds something else than tensors by name.
    """

    def objective(called: Any, examples: Batch) -> tuple[torch.Tensor, None]:
        return loss(called, examples), None

    step = TrainingStep(model, optimizer, objective, clip_norm, accumulation, seeded)
    return captured_step(step, _first(batch))


def capture_recipe_step(recipe: Recipe, vocabulary: int) -> CapturedStep:
    """The step that `Trainer` takes on a recipe; also gives `activation.mean` and `activation.rms` where recorded.

    Raises `UnavailableError` where the step cannot be captured: a recipe with dropout, for example, whose random
    numbers come from a generator.
    """
    trainer, settings = Trainer(recipe, vocabulary, "cpu"), recipe.training

    def objective(called: Any, examples: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = logits_of(called, dict(examples))
        loss = nn.functional.cross_entropy(logits.float(), labels_of(dict(examples)))
        return loss, logits if recipe.record.activation_checksum else None

    def precision() -> AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.dtype == "bf16")

    clip_norm = recipe.optimizer.clip_norm
    step = TrainingStep(
        trainer.model, trainer.optimizer, objective, clip_norm, settings.accumulation, precision=precision
    )
    return captured_step(step, _example_batch(recipe, vocabulary))


def _first(batch: Batch | Sequence[Batch]) -> dict[str, torch.Tensor]:
    """The first micro-batch; raises `UsageError` unless it is a mapping from names to tensors."""
    examples = batch if isinstance(batch, Mapping) or not len(batch) else batch[0]
    if not isinstance(examples, Mapping) or not all(isinstance(value, torch.Tensor) for value in examples.values()):
        raise UsageError('a batch is a mapping from names to tensors, such as {"x": x, "y": y}')
    return dict(examples)


def _example_batch(recipe: Recipe, vocabulary: int) -> dict[str, torch.Tensor]:
    """A batch of the recipe's shapes with values that differ."""
    settings, draw = recipe.training, torch.Generator().manual_seed(0)
    if recipe.data.kind == "digits":
        images = torch.rand(settings.batch, 1, 8, 8, generator=draw)
        return {"images": images, "labels": torch.randint(10, (settings.batch,), generator=draw)}
    shape = (settings.batch, settings.sequence)
    return {name: torch.randint(vocabulary, shape, generator=draw) for name in ("inputs", "targets")}

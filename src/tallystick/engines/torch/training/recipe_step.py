"""Captures the trainer's step on a recipe as one graph."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.capture.module_trail import NO_TRAIL, Trail
from tallystick.engines.torch.capture.step import Batch, CapturedStep, TrainingStep
from tallystick.engines.torch.capture.training_step import captured_step
from tallystick.engines.torch.randomness import config_that_drops, describe_dropout
from tallystick.engines.torch.training.trainer import Trainer, labels_of, logits_of
from tallystick.formats.recipe import Recipe


def capture_recipe_step(recipe: Recipe, vocabulary: int, trail: Trail = NO_TRAIL) -> CapturedStep:
    """The step of `Trainer` on a recipe; with outputs `activation.mean` and `activation.rms` if they are recorded.

    Its nodes have module paths if a `ModuleTrail` is given.

    Raises `UnavailableError` if the step cannot be captured; where the model drops, with the settings that end it.
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
    try:
        return captured_step(step, [_example_batch(recipe, vocabulary)] * step.accumulation, trail)
    except UnavailableError:
        if drops := _dropout_of(recipe, trainer.model):
            raise UnavailableError(drops) from None
        raise


def _dropout_of(recipe: Recipe, model: nn.Module) -> str:
    """In words, that a model drops and which settings of the recipe end that; empty where it does not."""
    drops = describe_dropout(model)
    names = [*config_that_drops(model)] or [name for name in recipe.model.config if "drop" in name]
    settings = ", ".join(f"{name} = 0" for name in names)
    return f"{drops}: to have one, set {settings} in [model.config]" if drops else ""


def _example_batch(recipe: Recipe, vocabulary: int) -> dict[str, torch.Tensor]:
    """A batch with the recipe's shapes and random values."""
    settings, draw = recipe.training, torch.Generator().manual_seed(0)
    if recipe.data.kind == "digits":
        images = torch.rand(settings.batch, 1, 8, 8, generator=draw)
        return {"images": images, "labels": torch.randint(10, (settings.batch,), generator=draw)}
    shape = (settings.batch, settings.sequence)
    return {name: torch.randint(vocabulary, shape, generator=draw) for name in ("inputs", "targets")}

"""The learning rate of a step, computed in binary64 from the recipe alone: the same on every machine."""

from __future__ import annotations

import math

from tallystick.transcripts.recipe import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """The learning rate of step `step` (1-based)."""
    peak, warmup = recipe.optimizer.learning_rate, recipe.schedule.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    return peak * _decay(recipe, (step - warmup) / max(1, recipe.training.steps - warmup))


def _decay(recipe: Recipe, progress: float) -> float:
    final = recipe.schedule.final_share
    if recipe.schedule.kind == "constant":
        return 1.0
    if recipe.schedule.kind == "linear":
        return 1.0 - (1.0 - final) * progress
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

"""What an optimizer reads besides tensors: the rule of a group, and the scalars of a step."""

from __future__ import annotations

from tallystick.errors import UsageError
from tallystick.transcripts.recipe import OptimizerRecipe
from tallystick.transcripts.rule import GroupRule, read_rule


def rule_of_recipe(recipe: OptimizerRecipe) -> GroupRule:
    """The rule of a recipe; a schedule gives the learning rate, and clipping comes before the optimizer."""
    return read_rule(recipe.model_dump(mode="json", exclude={"learning_rate", "clip_norm"}))


def schedule_scalars(rule: GroupRule, learning_rate: float, step: int) -> dict[str, float]:
    """The scalars of step `step` (1-based), each in binary64, sorted by name.

    Raises `UsageError` for a step before the first.
    """
    if step < 1:
        raise UsageError(f"there is no step {step}: steps are counted from 1")
    return dict(sorted(rule.scalars(learning_rate, step).items()))

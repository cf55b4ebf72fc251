"""What an optimizer reads besides tensors: settings that stay, and scalars that follow from the step number.

The scalars are computed in binary64 as `torch.optim` computes them, so that a graph holds no step number; they enter it
as `schedule.<name>`. AdamW is Loshchilov & Hutter 2019 (Algorithm 2), Adam Kingma & Ba 2015 (§2, last paragraph).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, Self

from tallystick.errors import UsageError
from tallystick.transcripts.recipe import OptimizerRecipe
from tallystick.transcripts.rule import GroupRule


@dataclass(frozen=True)
class UpdateRule:
    """The settings of one group of parameters that no schedule changes."""

    kind: Literal["adamw", "adam", "sgd"]
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    @classmethod
    def of(cls, recipe: OptimizerRecipe) -> Self:
        """The rule of a recipe."""
        return cls(recipe.kind, recipe.betas, recipe.eps, recipe.weight_decay, recipe.momentum)

    @classmethod
    def of_group(cls, group: GroupRule) -> Self:
        """The rule of a parameter group, as a spec states it."""
        return cls(
            group.kind,
            group.betas,
            group.eps,
            group.weight_decay,
            group.momentum,
            group.nesterov,
            group.maximize,
        )

    def to_group(self) -> GroupRule:
        """The rule as a spec states it."""
        return GroupRule.model_validate(asdict(self))

    @property
    def slots(self) -> tuple[str, ...]:
        """What the optimizer keeps for each parameter, in the order in which it is allocated."""
        if self.kind == "sgd":
            return ("momentum_buffer",) if self.momentum else ()
        return ("step", "exp_avg", "exp_avg_sq")


def schedule_scalars(rule: UpdateRule, learning_rate: float, step: int) -> dict[str, float]:
    """The scalars of step `step` (1-based), each in binary64.

    `step_size` is what an update is multiplied by, its sign included: −η for SGD, −η / (1 − β₁ᵗ) for Adam. `decay` is
    1 − η·λ, `root_correction` is √(1 − β₂ᵗ). Raises `UsageError` for a step before the first.
    """
    if step < 1:
        raise UsageError(f"there is no step {step}: steps are counted from 1")
    if rule.kind == "sgd":
        return {"step_size": -learning_rate}
    first, second = rule.betas
    scalars = {
        "root_correction": (1 - second**step) ** 0.5,
        "step_size": -(learning_rate / (1 - first**step)),
    }
    if rule.kind == "adamw" and rule.weight_decay:
        scalars["decay"] = 1 - learning_rate * rule.weight_decay
    return dict(sorted(scalars.items()))

"""Lion (Chen et al. 2023, Algorithm 2)."""

from __future__ import annotations

from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Share
from tallystick.transcripts.rule import GroupRule, SlotSpec


class LionRule(GroupRule):
    """The sign of an average of momentum and gradient, by β₁; the momentum decays by β₂."""

    kind: Literal["lion"] = "lion"
    betas: tuple[Share, Share] = (0.9, 0.99)

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The momentum."""
        return {"exp_avg": SlotSpec(weight)}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η, `decay` 1 − η·λ."""
        return {"decay": 1.0 - learning_rate * self.weight_decay, "step_size": -learning_rate}


RULE: Final = LionRule

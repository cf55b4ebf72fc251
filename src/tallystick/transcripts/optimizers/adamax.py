"""Adamax (Kingma & Ba 2015, Algorithm 2)."""

from __future__ import annotations

from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Beta, Share
from tallystick.transcripts.rule import COUNTER, GroupRule, SlotSpec


class AdamaxRule(GroupRule):
    """Divides the mean by the largest gradient, which decays by β₂."""

    kind: Literal["adamax"] = "adamax"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, the mean of gradients and the largest one."""
        return {"step": COUNTER, "exp_avg": SlotSpec(weight), "exp_inf": SlotSpec(weight)}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η / (1 − β₁ᵗ)."""
        return {"step_size": -(learning_rate / (1 - self.betas[0] ** step))}


RULE: Final = AdamaxRule

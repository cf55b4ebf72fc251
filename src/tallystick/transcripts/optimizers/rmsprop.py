"""RMSprop (Tieleman & Hinton 2012, lecture 6e), centred (Graves 2013, equations 38–45) or not."""

from __future__ import annotations

from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Beta, Share
from tallystick.transcripts.rule import COUNTER, GroupRule, SlotSpec


class RmspropRule(GroupRule):
    """`alpha` is the decay of the mean of squared gradients."""

    kind: Literal["rmsprop"] = "rmsprop"
    alpha: Share = 0.99
    eps: Share = 1e-8
    momentum: Beta = 0.0
    centered: bool = False
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, the mean of squares, the momentum, and the mean of gradients if centred."""
        momentum = {"momentum_buffer": SlotSpec(weight)} if self.momentum else {}
        mean = {"grad_avg": SlotSpec(weight)} if self.centered else {}
        return {"step": COUNTER, "square_avg": SlotSpec(weight), **momentum, **mean}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η."""
        return {"step_size": -learning_rate}


RULE: Final = RmspropRule

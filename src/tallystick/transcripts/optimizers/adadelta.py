"""Adadelta (Zeiler 2012, Algorithm 1)."""

from __future__ import annotations

from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Share
from tallystick.transcripts.rule import COUNTER, GroupRule, SlotSpec


class AdadeltaRule(GroupRule):
    """`rho` is the decay of both means of squares."""

    kind: Literal["adadelta"] = "adadelta"
    rho: Share = 0.9
    eps: Share = 1e-6
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, and the means of squared gradients and of squared moves."""
        return {"step": COUNTER, "square_avg": SlotSpec(weight), "acc_delta": SlotSpec(weight)}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η."""
        return {"step_size": -learning_rate}


RULE: Final = AdadeltaRule

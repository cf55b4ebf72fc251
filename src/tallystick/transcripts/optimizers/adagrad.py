"""Adagrad (Duchi, Hazan & Singer 2011, Algorithm 1 with diagonal matrices)."""

from __future__ import annotations

from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Rate, Share
from tallystick.transcripts.rule import COUNTER, GroupRule, SlotSpec


class AdagradRule(GroupRule):
    """The sum of squares starts at `initial_accumulator_value`, and the learning rate falls by `lr_decay`."""

    kind: Literal["adagrad"] = "adagrad"
    lr_decay: Rate = 0.0
    eps: Share = 1e-10
    initial_accumulator_value: Rate = 0.0
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, and the sum of squared gradients."""
        return {"step": COUNTER, "sum": SlotSpec(weight, self.initial_accumulator_value)}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η / (1 + (t − 1)·`lr_decay`)."""
        return {"step_size": -(learning_rate / (1 + (step - 1) * self.lr_decay))}


RULE: Final = AdagradRule

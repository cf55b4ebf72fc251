"""Stochastic gradient descent with momentum (Sutskever et al. 2013), as `torch.optim.SGD` computes it."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Beta, Share
from tallystick.transcripts.rule import GroupRule, SlotSpec, is_off


class SgdRule(GroupRule):
    """`dampening` weakens gradients in the momentum, except in the first step.

    `betas` and `eps` are stated since the first version, and read by nothing.
    """

    kind: Literal["sgd"] = "sgd"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    momentum: Beta = 0.0
    nesterov: bool = False
    maximize: bool = False
    dampening: Share = Field(default=0.0, exclude_if=is_off)

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The momentum, where there is any; −0 before the first step, so that its sum with a gradient is that one."""
        return {"momentum_buffer": SlotSpec(weight, -0.0)} if self.momentum else {}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η; `gradient_share` is 1 in the first step, then 1 − dampening."""
        share = {"gradient_share": 1.0 if step == 1 else 1 - self.dampening} if self.momentum and self.dampening else {}
        return {"step_size": -learning_rate, **share}


RULE: Final = SgdRule

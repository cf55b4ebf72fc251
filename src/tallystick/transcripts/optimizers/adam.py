"""Adam (Kingma & Ba 2015, Algorithm 1), AdamW (Loshchilov & Hutter 2019, Algorithm 2), AMSGrad (Reddi et al. 2018)."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from pydantic import Field

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Beta, Share
from tallystick.transcripts.rule import COUNTER, GroupRule, SlotSpec, is_off


class AdamRule(GroupRule):
    """`adamw` takes the decay off the weight, `adam` adds it to the gradient.

    `fused` names the kernel that updates a parameter in one pass, `amsgrad` the variant that divides by the largest
    second moment. `rate_dtype` is stated for a learning rate that is a tensor: its scalars are computed in that dtype.
    `momentum` and `nesterov` are stated since the first version, and read by nothing.
    """

    kind: Literal["adamw", "adam"]
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    momentum: Beta = 0.0
    nesterov: bool = False
    maximize: bool = False
    amsgrad: bool = Field(default=False, exclude_if=is_off)
    fused: bool = Field(default=False, exclude_if=is_off)
    rate_dtype: Literal["F32"] | None = None

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, both moments, and for AMSGrad the largest second moment."""
        largest = {"max_exp_avg_sq": SlotSpec(weight)} if self.amsgrad else {}
        return {"step": COUNTER, "exp_avg": SlotSpec(weight), "exp_avg_sq": SlotSpec(weight), **largest}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η / (1 − β₁ᵗ), `root_correction` √(1 − β₂ᵗ), `decay` 1 − η·λ (Kingma & Ba, end of §2).

        A fused kernel computes these itself from `learning_rate`, which is η.
        """
        if self.fused:
            return {"learning_rate": learning_rate}
        first, second = self.betas
        number = np.float32 if self.rate_dtype else float
        rate = number(learning_rate)
        scalars = {
            "root_correction": (1 - second**step) ** 0.5,
            "step_size": -float(rate / number(1 - first**step)),
        }
        if self.kind == "adamw" and self.weight_decay:
            scalars["decay"] = float(number(1) - rate * number(self.weight_decay))
        return scalars

    @property
    def second_moment_decay(self) -> float | None:
        """β₂."""
        return self.betas[1]


RULE: Final = AdamRule

"""NAdam (Dozat 2016, Algorithm 8), with the schedule of momentum of `torch.optim.NAdam`."""

from __future__ import annotations

import math
from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Beta, Rate, Share
from tallystick.transcripts.rule import COUNTER, GroupRule, SlotSpec

FALL: Final = 0.96


class NadamRule(GroupRule):
    """`decoupled` takes the decay off the weight, as AdamW; otherwise it is added to the gradient."""

    kind: Literal["nadam"] = "nadam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    momentum_decay: Rate = 4e-3
    decoupled: bool = False
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, the product of all momenta μ, and both moments."""
        product = SlotSpec(TensorSpec("F32"), 1.0)
        return {
            "step": COUNTER,
            "mu_product": product,
            "exp_avg": SlotSpec(weight),
            "exp_avg_sq": SlotSpec(weight),
        }

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`mu` and `mu_next` are the momenta of this step and the next; `correction` is 1 − β₂ᵗ.

        `gradient_size` is −η·(1 − μ), `mean_size` −η·μ of the next step, `decay` 1 − η·λ.
        """
        now, following = self._momentum(step), self._momentum(step + 1)
        scalars = {
            "correction": 1 - self.betas[1] ** step,
            "gradient_size": -learning_rate * (1.0 - now),
            "mean_size": -learning_rate * following,
            "mu": now,
            "mu_next": following,
        }
        if self.decoupled and self.weight_decay:
            scalars["decay"] = 1 - learning_rate * self.weight_decay
        return scalars

    def _momentum(self, step: int) -> float:
        return self.betas[0] * (1.0 - 0.5 * math.pow(FALL, step * self.momentum_decay))

    @property
    def second_moment_decay(self) -> float | None:
        """β₂."""
        return self.betas[1]


RULE: Final = NadamRule

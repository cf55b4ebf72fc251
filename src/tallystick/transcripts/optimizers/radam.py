"""RAdam (Liu et al. 2020, Algorithm 2)."""

from __future__ import annotations

from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Beta, Share
from tallystick.transcripts.rule import COUNTER, GroupRule, SlotSpec

SHORT: Final = 5.0
"""Up to this length of the average, its variance is intractable, and the step is one of momentum alone."""


class RadamRule(GroupRule):
    """`decoupled` takes the decay off the weight, as AdamW; otherwise it is added to the gradient."""

    kind: Literal["radam"] = "radam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Share = 1e-8
    decoupled: bool = False
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step and both moments."""
        return {"step": COUNTER, "exp_avg": SlotSpec(weight), "exp_avg_sq": SlotSpec(weight)}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`learning_rate` is η, `correction` 1 − β₁ᵗ, `root_correction` √(1 − β₂ᵗ), `decay` 1 − η·λ.

        `rectification` is r of the paper, and 0 while the variance is intractable.
        """
        first, second = (1 - beta**step for beta in self.betas)
        scalars = {
            "correction": first,
            "learning_rate": learning_rate,
            "rectification": self._rectification(step, second),
            "root_correction": second**0.5,
        }
        if self.decoupled and self.weight_decay:
            scalars["decay"] = 1 - learning_rate * self.weight_decay
        return scalars

    def _rectification(self, step: int, correction: float) -> float:
        decay = self.betas[1]
        longest = 2 / (1 - decay) - 1
        length = longest - 2 * step * (decay**step) / correction
        if length <= SHORT:
            return 0.0
        share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        return float(share**0.5)

    @property
    def second_moment_decay(self) -> float | None:
        """β₂."""
        return self.betas[1]


RULE: Final = RadamRule

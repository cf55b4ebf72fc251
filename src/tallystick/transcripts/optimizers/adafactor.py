"""Adafactor (Shazeer & Stern 2018, Algorithms 4 and 5), as `torch.optim.Adafactor` computes it."""

from __future__ import annotations

from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Rate, Share
from tallystick.transcripts.rule import COUNTER, Exponent, GroupRule, SlotSpec


class AdafactorRule(GroupRule):
    """`eps` are ε₁, where it is stated, and ε₂; `clip` is d, and `beta2_decay` the exponent of the step number.

    Without ε₁, it is the unit of roundoff of the weight's dtype.
    """

    kind: Literal["adafactor"] = "adafactor"
    beta2_decay: Exponent = -0.8
    eps1: Share | None = None
    eps2: Share = 1e-3
    clip: Rate = 1.0
    maximize: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step, and the second moment: of rows and columns, or of each element where there are no matrices."""
        if len(weight.shape) < 2:
            return {"step": COUNTER, "variance": SlotSpec(weight)}
        *outer, rows, columns = weight.shape
        row, column = ((*outer, rows, 1), (*outer, 1, columns))
        moments = {"row_var": row, "col_var": column}
        return {
            "step": COUNTER,
            **{name: SlotSpec(TensorSpec(weight.dtype, shape)) for name, shape in moments.items()},
        }

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`moment_share` is 1 − β₂ₜ, `rho` min(η, 1/√t), `decay` 1 − η·λ."""
        scalars = {"moment_share": float(step) ** self.beta2_decay, "rho": min(learning_rate, 1 / (float(step) ** 0.5))}
        if self.weight_decay:
            scalars["decay"] = 1 - learning_rate * self.weight_decay
        return scalars


RULE: Final = AdafactorRule

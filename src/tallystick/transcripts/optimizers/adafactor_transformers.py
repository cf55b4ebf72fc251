"""Adafactor (Shazeer & Stern 2018), as `transformers.Adafactor` computes it."""

from __future__ import annotations

import math
from typing import Final, Literal

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Beta, Rate, Share
from tallystick.transcripts.rule import Exponent, GroupRule, SlotSpec

COUNT: Final = SlotSpec(TensorSpec("F64"))
"""A number of Python, as a state holds it."""
ROOT_MEAN_SQUARE: Final = SlotSpec(TensorSpec("F32"))


class TransformersAdafactorRule(GroupRule):
    """`eps` are those of squared gradients and of the scale of a weight.

    With `relative_step` the learning rate follows from the step number, and `warmup_init` begins it at 10⁻⁶; with
    `scale_parameter` it is multiplied by the root mean square of the weight. `beta1` is stated with a first moment.
    """

    kind: Literal["adafactor-transformers"] = "adafactor-transformers"
    eps: tuple[Share, Share] = (1e-30, 1e-3)
    clip_threshold: Rate = 1.0
    decay_rate: Exponent = -0.8
    beta1: Beta | None = None
    scale_parameter: bool = True
    relative_step: bool = True
    warmup_init: bool = False

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The step and the root mean square of the weight, the moments: that of rows and columns, or of elements."""
        mean = {"exp_avg": SlotSpec(weight)} if self.beta1 is not None else {}
        counts = {"step": COUNT, "RMS": ROOT_MEAN_SQUARE}
        if len(weight.shape) < 2:
            return {**counts, **mean, "exp_avg_sq": SlotSpec(weight)}
        shapes = {"row": weight.shape[:-1], "col": weight.shape[:-2] + weight.shape[-1:]}
        squares = {f"exp_avg_sq_{side}": SlotSpec(TensorSpec(weight.dtype, shape)) for side, shape in shapes.items()}
        return {**counts, **mean, **squares}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`moment_decay` is β₂ₜ, `moment_share` 1 − β₂ₜ, `rate` the learning rate before it is scaled."""
        decay = 1.0 - math.pow(step, self.decay_rate)
        return {"moment_decay": decay, "moment_share": 1.0 - decay, "rate": self._rate(learning_rate, step)}

    def _rate(self, learning_rate: float, step: int) -> float:
        if not self.relative_step:
            return learning_rate
        return min(1e-6 * step if self.warmup_init else 1e-2, 1.0 / math.sqrt(step))


RULE: Final = TransformersAdafactorRule

"""Muon (Jordan et al. 2024; its learning rates also Liu et al. 2025), as `torch.optim.Muon` computes it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.tensors.spec import TensorSpec
from tallystick.transcripts.recipe import Share
from tallystick.transcripts.rule import GroupRule, SlotSpec

Coefficient = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class MuonRule(GroupRule):
    """A matrix moves by its momentum made orthogonal: `steps` of Newton and Schulz with `coefficients` in BF16.

    `adjust` says how the step grows with the matrix: √max(1, rows / columns), or 0.2·√max(rows, columns).
    """

    kind: Literal["muon"] = "muon"
    momentum: Share = 0.95
    nesterov: bool = True
    coefficients: tuple[Coefficient, Coefficient, Coefficient] = (3.4445, -4.7750, 2.0315)
    eps: Share = 1e-7
    steps: Annotated[int, Field(ge=0, le=99)] = 5
    adjust: Literal["original", "match_rms_adamw"] = "original"

    def slots(self, weight: TensorSpec) -> dict[str, SlotSpec]:
        """The momentum."""
        return {"momentum_buffer": SlotSpec(weight)}

    def scalars(self, learning_rate: float, step: int) -> dict[str, float]:
        """`step_size` is −η, before it grows with the matrix; `decay` is 1 − η·λ."""
        return {"decay": 1 - learning_rate * self.weight_decay, "step_size": -learning_rate}


RULE: Final = MuonRule

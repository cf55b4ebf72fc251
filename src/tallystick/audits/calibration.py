"""Calibrated limits: how far honest stacks lie apart, per optimizer, precision and window.

The shipped table is made by `tally calibrate-training` and committed with the figures it rests on. A verifier may bring
another one; a prover never can.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from tallystick.documents.document import Count, Document, Positive
from tallystick.transcripts.recipe import Recipe

if TYPE_CHECKING:
    from tallystick.tolerances.residual import ResidualLimits

Distance = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Family = Literal["language", "image"]
MARGIN: Final = 4.0
"""How far limits lie above the largest honest drift that was seen, at least."""


class StateLimits(Document):
    """Largest distances at which a replayed state agrees; the fields are those of `ResidualLimits`."""

    overall: Distance
    worst_tensor: Distance
    mismatch_share: Distance
    element: Distance | None = None
    stretch: Distance | None = None

    def residual_limits(self, update_floor: float) -> ResidualLimits:
        """The limits as the tolerance takes them; an absent `element` or `stretch` is no limit."""
        from tallystick.tolerances.residual import ResidualLimits  # only a tolerant audit measures residuals

        return ResidualLimits(
            self.overall,
            self.worst_tensor,
            self.mismatch_share,
            math.inf if self.element is None else self.element,
            update_floor,
            math.inf if self.stretch is None else self.stretch,
        )


class LimitsEntry(Document):
    """Limits for segments of at most `window` steps that start at `from_step` or later.

    They hold for weights, for optimizer memory and buffers, for sketches and for losses. `honest_max` and
    `held_out_max` are the largest distances seen on the stacks and seeds that were calibrated on, and on those
    that were not; `withdrawn` names the cheats that these limits do not tell from honest drift. `parameters` is the
    number of weights that the measured models had; without it the limits are meant for every size.
    """

    family: Family
    optimizer: Literal["adamw", "sgd"]
    dtype: Literal["fp32", "bf16"]
    window: Positive
    from_step: Count
    weights: StateLimits
    memory: StateLimits
    projection: Distance
    loss_band: Distance
    honest_segments: Positive
    held_out_segments: Count
    honest_max: dict[str, Distance]
    held_out_max: dict[str, Distance]
    withdrawn: tuple[str, ...]
    parameters: Positive | None = None

    @property
    def parameters_max(self) -> float:
        """The largest number of weights for which a distance beyond these limits counts against a run.

        Limits lie at least `MARGIN` times above honest drift. The rounding of a sum grows with the root of its length,
        so a model `MARGIN`² times as large may reach the limits.
        """
        return math.inf if self.parameters is None else MARGIN**2 * self.parameters


class Calibration(Document):
    """A table of limits and where it was measured."""

    version: Literal[1] = 1
    machine: str
    torch: str
    stacks: tuple[str, ...]
    held_out: tuple[str, ...]
    entries: tuple[LimitsEntry, ...]

    def entry_for(self, recipe: Recipe, start: int, steps: int) -> LimitsEntry | None:
        """The entry of the smallest window that holds `steps` from state `start`, or `None` if none was calibrated."""
        return self.entry_at((family_of(recipe), recipe.optimizer.kind, recipe.training.dtype), start, steps)

    def entry_at(self, wanted: tuple[str, str, str], start: int, steps: int) -> LimitsEntry | None:
        """As `entry_for`, for a family, an optimizer and a precision."""
        fitting = [
            entry
            for entry in self.entries
            if (entry.family, entry.optimizer, entry.dtype) == wanted
            and entry.window >= steps
            and entry.from_step <= start
        ]
        return min(fitting, key=lambda entry: (entry.window, -entry.from_step), default=None)


def family_of(recipe: Recipe) -> Family:
    """Which family of models a recipe belongs to; each drifts in its own way."""
    return "image" if recipe.model.architecture == "cnn" else "language"


@cache
def shipped_calibration() -> Calibration:
    """The table that comes with this version."""
    data = resources.files("tallystick.audits").joinpath("calibration.json").read_bytes()
    return Calibration.from_bytes(data.removesuffix(b"\n"), "calibration.json")

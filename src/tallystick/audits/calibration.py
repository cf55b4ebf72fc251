"""Calibrated limits: how far honest stacks lie apart, per optimizer, precision and window.

The shipped table is made by `tally calibrate` and committed with the figures it rests on. A verifier may bring
another one; a prover never can.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources
from typing import Annotated, Literal

from pydantic import Field

from tallystick.tolerances import ResidualLimits
from tallystick.transcripts import Document
from tallystick.transcripts.door import Positive

Distance = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Limits(Document):
    """Largest distances at which a replayed state agrees; the fields are those of `ResidualLimits`."""

    overall: Distance
    worst_tensor: Distance
    mismatch_share: Distance
    element: Distance
    stretch: Distance | None = None

    def residual_limits(self, update_floor: float) -> ResidualLimits:
        """The limits as the tolerance takes them; an absent `stretch` is no limit."""
        return ResidualLimits(
            self.overall,
            self.worst_tensor,
            self.mismatch_share,
            self.element,
            update_floor,
            math.inf if self.stretch is None else self.stretch,
        )


class Entry(Document):
    """Limits for segments of at most `window` steps: weights, then optimizer memory and buffers, then sketches."""

    optimizer: Literal["adamw", "sgd"]
    dtype: Literal["fp32", "bf16"]
    window: Positive
    weights: Limits
    memory: Limits
    projection: Distance
    loss_band: Distance
    honest_segments: Positive


class Calibration(Document):
    """A table of limits and where it was measured."""

    version: Literal[1] = 1
    machine: str
    torch: str
    stacks: tuple[str, ...]
    held_out: tuple[str, ...]
    entries: tuple[Entry, ...]

    def entry_for(self, optimizer: str, dtype: str, steps: int) -> Entry | None:
        """The entry of the smallest window that holds `steps`, or `None` where nothing was calibrated."""
        fitting = [e for e in self.entries if (e.optimizer, e.dtype) == (optimizer, dtype) and e.window >= steps]
        return min(fitting, key=lambda entry: entry.window, default=None)


@cache
def shipped_calibration() -> Calibration:
    """The table that comes with this version."""
    data = resources.files("tallystick.audits").joinpath("calibration.json").read_bytes()
    return Calibration.from_bytes(data.removesuffix(b"\n"), "calibration.json")

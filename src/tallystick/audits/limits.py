"""Calibrated limits of training, and limits that a verifier measured on somebody's run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.core.documents import Count, Document, Positive
from tallystick.formats.recipe import Recipe

# Calibrated limits: how far honest stacks lie apart, per optimizer, precision and window.
#
# The shipped table is made by `tally calibrate-training` and committed with the figures it rests on. A verifier may
# bring another one; a prover never can.

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


# Limits that a verifier measured on somebody's run: how far above the shipped ones they may lie.
#
# A prover chooses the states that such limits are measured from. Where it trains chaotically, honest stacks drift far
# apart, and limits made of that let a forgery through. Healthy runs of 0.2 million weights give limits up to 44 times
# the shipped ones, chaotic ones up to a million times (docs/data/own_limits.json, `research.own_limits`).

MULTIPLE_MAX: Final = 100.0
"""How many times the shipped limit one of somebody's own may be."""
UPDATE_MAX: Final = 0.05
"""The share of an update that own limits may leave open, or `MARGIN` times what the shipped ones do if that is more."""
OVERALL: Final = "weights overall"


def compared(entry: LimitsEntry) -> Mapping[str, tuple[float, float]]:
    """Each limit of an entry, by its name, with the shipped one for such segments.

    A shipped limit grows with the length of segments beyond those that were calibrated, and with the root of the number
    of weights, as rounding does. Empty where no such training was calibrated.
    """
    table, kind = shipped_calibration(), (entry.family, entry.optimizer, entry.dtype)
    alike = [row.window for row in table.entries if (row.family, row.optimizer, row.dtype) == kind]
    base = table.entry_at(kind, entry.from_step, min(entry.window, max(alike))) if alike else None
    if base is None:
        return {}
    larger = (entry.parameters or 1) / (base.parameters or 1)
    growth, floor = max(1.0, entry.window / max(alike)) * math.sqrt(max(1.0, larger)), dict(_named(base))
    return {name: (limit, growth * floor[name]) for name, limit in _named(entry) if name in floor}


def too_wide(entry: LimitsEntry) -> list[str]:
    """Which limits of an entry lie too far above the shipped ones, in words; none if all may be used."""
    limits = compared(entry)
    wide = [
        f"{name}: {limit:g}, {limit / base:,.0f} times the shipped {base:.3g}"
        for name, (limit, base) in limits.items()
        if limit > MULTIPLE_MAX * base
    ]
    limit, base = limits.get(OVERALL, (0.0, 0.0))
    if not wide and limit > max(UPDATE_MAX, MARGIN * base):
        wide.append(f"{OVERALL}: {limit:g}, and more than {UPDATE_MAX:g} of an update would be left open")
    return wide


def _named(entry: LimitsEntry) -> Iterator[tuple[str, float]]:
    yield "projection", entry.projection
    yield "loss", entry.loss_band
    groups: dict[str, StateLimits] = {"weights": entry.weights, "memory": entry.memory}
    for group, limits in groups.items():
        for name, value in limits.model_dump(exclude_none=True).items():
            yield f"{group} {name.replace('_', ' ')}", value

"""Limits that a verifier measured on somebody's run: how far above the shipped ones they may lie.

A prover chooses the states that such limits are measured from. Where it trains chaotically, honest stacks drift far
apart, and the limits let forgeries through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tallystick.audits.calibration import LimitsEntry, StateLimits, shipped_calibration

if TYPE_CHECKING:
    from tallystick.audits.calibration import Calibration

MULTIPLE_MAX: Final = 50.0


def ratios(entry: LimitsEntry, shipped: Calibration | None = None) -> dict[str, float]:
    """Each limit of an entry over the shipped one for such segments, by its path.

    Segments longer than any that was calibrated are compared with the longest, in proportion to their length. Empty
    where no such training was calibrated at all.
    """
    table = shipped_calibration() if shipped is None else shipped
    kind = entry.family, entry.optimizer, entry.dtype
    longest = max((each.window for each in table.entries if (each.family, each.optimizer, each.dtype) == kind), default=0)
    base = table.entry_at(kind, entry.from_step, min(entry.window, longest)) if longest else None
    if base is None:
        return {}
    stretch, floor = max(1.0, entry.window / longest), dict(_paths(base))
    return {path: limit / (stretch * floor[path]) for path, limit in _paths(entry) if floor.get(path)}


def _paths(entry: LimitsEntry) -> Iterator[tuple[str, float]]:
    yield "projection", entry.projection
    yield "loss", entry.loss_band
    groups: dict[str, StateLimits] = {"weights": entry.weights, "memory": entry.memory}
    for group, limits in groups.items():
        for name, value in limits.model_dump(exclude_none=True).items():
            yield f"{group}.{name}", value

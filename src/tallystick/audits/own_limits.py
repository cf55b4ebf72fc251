"""Limits that a verifier measured on somebody's run: how far above the shipped ones they may lie.

A prover chooses the states that such limits are measured from. Where it trains chaotically, honest stacks drift far
apart, and limits made of that let a forgery through. Healthy runs of 0.2 million weights give limits up to 44 times the
shipped ones, chaotic ones up to a million times (docs/data/own_limits.json, `research.own_limits`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.audits.calibration import MARGIN, LimitsEntry, StateLimits, shipped_calibration

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
    alike = [each.window for each in table.entries if (each.family, each.optimizer, each.dtype) == kind]
    base = table.entry_at(kind, entry.from_step, min(entry.window, max(alike))) if alike else None
    if base is None:
        return {}
    larger = (entry.parameters or 1) / (base.parameters or 1)
    growth, floor = max(1.0, entry.window / max(alike)) * math.sqrt(max(1.0, larger)), dict(_named(base))
    return {name: (limit, growth * floor[name]) for name, limit in _named(entry) if name in floor}


def too_wide(entry: LimitsEntry) -> list[str]:
    """Which limits of an entry lie too far above the shipped ones, in words; none if all may be used."""
    found = compared(entry)
    wide = [
        f"{name}: {limit:g}, {limit / base:,.0f} times the shipped {base:.3g}"
        for name, (limit, base) in found.items()
        if limit > MULTIPLE_MAX * base
    ]
    limit, base = found.get(OVERALL, (0.0, 0.0))
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

"""Limits out of measured drift: a multiple of what honest stacks showed, per optimizer, precision and window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tallystick.audits.calibration import MARGIN, LimitsEntry, StateLimits
from tallystick.calibration.training.drift import Drift
from tallystick.calibration.training.honest import Sample

LONGER_MARGIN = 2 * MARGIN
"""Of limits for longer segments: single steps were sampled by the thousand, longer segments by the hundred."""
CLAIM_MARGIN = 2.0
LEAST = {
    "overall": 1e-6,
    "worst_tensor": 1e-5,
    "mismatch_share": 1e-4,
    "element": 1e-4,
    "stretch": 1e-6,
    "projection": 1e-5,
    "loss": 1e-7,
}
"""No limit is set lower: another machine may always differ in a last bit that no stack here differed in."""


def distances(drift: Drift) -> dict[str, float]:
    """Every judged distance of a drift by its path, such as `weights.overall`."""
    found = {
        f"{group}.{name}": getattr(getattr(drift, group), name)
        for group in ("weights", "memory")
        for name in ("overall", "worst_tensor", "mismatch_share", "element", "stretch")
    }
    del found["memory.element"]  # in units of the learning rate, which says nothing about a moment
    return found | {"projection": drift.projection, "loss": drift.loss}


def largest(samples: Iterable[Sample]) -> dict[str, float]:
    """The largest of every distance over some samples."""
    return largest_of(distances(sample.drift) for sample in samples)


def largest_of(drifts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The largest of every distance."""
    found: dict[str, float] = {}
    for drift in drifts:
        for name, distance in drift.items():
            found[name] = max(found.get(name, 0.0), distance)
    return found


def limits_over(honest: Mapping[str, float], window: int) -> dict[str, float]:
    """Limits for segments of up to `window` steps that leave honest drift its margin."""
    margin = MARGIN if window == 1 else LONGER_MARGIN
    return {name: max(margin * value, LEAST[name.split(".")[-1]]) for name, value in honest.items()}


def limits_of(entry: LimitsEntry) -> dict[str, float]:
    """The limits of an entry by the paths of `distances`."""
    named: dict[str, float] = {"projection": entry.projection, "loss": entry.loss_band}
    for group in ("weights", "memory"):
        for name, value in getattr(entry, group).model_dump(exclude_none=True).items():
            named[f"{group}.{name}"] = value
    return named


def excess(drift: Drift, limits: Mapping[str, float]) -> tuple[float, str]:
    """The distance that lies furthest beyond its limit, in units of it, and which one it is."""
    found = distances(drift)
    return max((found[name] / limit, name) for name, limit in limits.items() if name in found)


def as_limits(named: Mapping[str, float], group: str) -> StateLimits:
    """The limits of one group as a calibration holds them, rounded up to three digits."""
    fields = {path.split(".")[1]: round_up(value) for path, value in named.items() if path.startswith(f"{group}.")}
    return StateLimits(**fields)


def round_up(value: float) -> float:
    """The next number with three digits, never smaller than `value`."""
    short = float(f"{value:.2e}")
    return short if short >= value else float(f"{value * 1.005:.2e}")

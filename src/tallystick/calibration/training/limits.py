"""Limits from measured drift: a multiple of the largest honest distance, per optimizer, precision and window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tallystick.audits.calibration import MARGIN, LimitsEntry, StateLimits
from tallystick.calibration.training.drift import Drift
from tallystick.calibration.training.honest import Sample

LONGER_MARGIN = 2 * MARGIN
"""The margin for longer segments: it is larger because hundreds of them were sampled, but thousands of single steps."""
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
"""The smallest limits: another machine may differ in a last bit even if no stack here does."""


def distances(drift: Drift) -> dict[str, float]:
    """Every judged distance of a drift by its path, such as `weights.overall`."""
    by_path = {
        f"{group}.{name}": getattr(getattr(drift, group), name)
        for group in ("weights", "memory")
        for name in ("overall", "worst_tensor", "mismatch_share", "element", "stretch")
    }
    del by_path["memory.element"]  # its unit is the learning rate, which has no meaning for a moment
    return by_path | {"projection": drift.projection, "loss": drift.loss}


def largest(samples: Iterable[Sample]) -> dict[str, float]:
    """The largest of every distance over all `samples`, by path."""
    return largest_of(distances(sample.drift) for sample in samples)


def largest_of(drifts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The largest of every distance over all `drifts`, by path."""
    maxima: dict[str, float] = {}
    for drift in drifts:
        for name, distance in drift.items():
            maxima[name] = max(maxima.get(name, 0.0), distance)
    return maxima


def limits_over(honest: Mapping[str, float], window: int) -> dict[str, float]:
    """Limits for segments of up to `window` steps: the margin times honest drift, but at least `LEAST`."""
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
    """The largest distance ÷ limit, and the path of that distance."""
    measured = distances(drift)
    return max((measured[name] / limit, name) for name, limit in limits.items() if name in measured)


def as_limits(named: Mapping[str, float], group: str) -> StateLimits:
    """The limits of one group in the form of a calibration, rounded up to three digits."""
    fields = {path.split(".")[1]: round_up(value) for path, value in named.items() if path.startswith(f"{group}.")}
    return StateLimits(**fields)


def round_up(value: float) -> float:
    """`value` rounded up to three digits."""
    short = float(f"{value:.2e}")
    return short if short >= value else float(f"{value * 1.005:.2e}")

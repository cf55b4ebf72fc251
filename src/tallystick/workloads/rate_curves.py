"""Which schedule the learning rates of a loop follow, read off the rates themselves.

A loop states no schedule, only the rate of each step. Rates that follow a usual one (a linear warm-up, then constant,
linear, exponential or cosine decay, then constant) are described by it. A single step that was taken with another rate
than its neighbours follows none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

RELATIVE_TOLERANCE: Final = 1e-7
"""Of the largest rate: schedules that are computed step by step add up more rounding than one formula."""
POINTS_LEAST: Final = {"linear": 3, "exponential": 3, "cosine": 6}
"""How many rates a curve has to pass through before it describes them: fewer fix its own parameters."""
LAGS: Final = 8
"""A cosine's frequency is read off points that lie this share of the curve apart; neighbours differ by rounding."""

Rates: TypeAlias = "npt.NDArray[np.float64]"


def describe_rates(rates: Sequence[float]) -> str:
    """The schedule of these rates in words, such as "cosine from 0.001 to 0.0001 after 10 warm-up steps"; or empty."""
    x = np.asarray(rates, np.float64)
    if not x.size or not np.all(np.isfinite(x)):
        return ""
    scale = float(np.max(np.abs(x)))
    if _is_near(x, np.full_like(x, x[0]), scale):
        return f"constant {x[0]:.6g}"
    peak = int(np.argmax(x))
    if not _is_near(x[: peak + 1], np.linspace(x[0], x[peak], peak + 1), scale):
        return ""
    if peak == x.size - 1:
        return f"linear from {x[0]:.6g} to {x[-1]:.6g}" if x.size >= POINTS_LEAST["linear"] else ""
    warm = f" after {peak} warm-up step{'s' * (peak != 1)}" if peak else ""
    decay = x[peak:]
    flat = int(np.argmax(np.abs(decay - decay[-1]) <= RELATIVE_TOLERANCE * scale))
    if flat == 0:
        return f"constant {x[peak]:.6g}{warm}"
    decay = decay[: flat + 1]
    for kind, curve in CURVES.items():
        if decay.size >= POINTS_LEAST[kind] and _is_near(decay, curve(decay), scale):
            return f"{kind} from {x[peak]:.6g} to {x[-1]:.6g}{warm}"
    return ""


def first_unexplained(rates: Sequence[float]) -> int:
    """The place of the first rate that ends the longest beginning which follows a schedule; `len(rates)` if all do."""
    known, beyond = 0, len(rates) + 1
    while beyond - known > 1:
        middle = (known + beyond) // 2
        known, beyond = (middle, beyond) if describe_rates(rates[:middle]) else (known, middle)
    return known


def _is_near(x: Rates, curve: Rates, scale: float) -> bool:
    return bool(np.max(np.abs(x - curve), initial=0.0) <= RELATIVE_TOLERANCE * scale)


def _linear(x: Rates) -> Rates:
    return np.linspace(x[0], x[-1], x.size)


def _exponential(x: Rates) -> Rates:
    if x[0] <= 0 or x[-1] <= 0:
        return np.full_like(x, np.nan)
    return np.geomspace(x[0], x[-1], x.size)


def _cosine(x: Rates) -> Rates:
    """A + b·cos(ct) + e·sin(ct): x(t − h) + x(t + h) = 2·cos(ch)·x(t) + d gives c, least squares the rest."""
    lag = max(1, x.size // LAGS)
    middle = x[lag:-lag]
    sides = np.stack([middle, np.ones_like(middle)], axis=1)
    (twice, _), *_ = np.linalg.lstsq(sides, x[2 * lag :] + x[: -2 * lag], rcond=None)
    angle = np.arccos(np.clip(twice / 2, -1.0, 1.0)) / lag * np.arange(x.size)
    basis = np.stack([np.ones_like(angle), np.cos(angle), np.sin(angle)], axis=1)
    weights, *_ = np.linalg.lstsq(basis, x, rcond=None)
    curve: Rates = basis @ weights
    return curve


CURVES: Final[dict[str, Callable[[Rates], Rates]]] = {"linear": _linear, "exponential": _exponential, "cosine": _cosine}

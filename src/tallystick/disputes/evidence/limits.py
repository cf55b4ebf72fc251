"""Limits for windows up to twice as long as the longest calibrated one: the limits of the longest, multiplied.

Drift is calibrated over 1, 8 and 32 steps. Beyond that, it is assumed to grow with the cube of the number of steps:
from 8 to 32 steps, 162 of the 176 limits of the shipped table grow by no more. For still longer windows, such limits
would allow everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tallystick.audits.calibration import Calibration, LimitsEntry, StateLimits
from tallystick.errors import UnavailableError

Kind: TypeAlias = tuple[str, str, str]
"""Family, optimizer and precision."""
STRETCHED_MAX: Final = 2.0
"""The longest window with limits, as a multiple of the longest calibrated window."""
GROWTH: Final = 3.0
"""The exponent with which limits grow with the number of steps."""


@dataclass(frozen=True)
class WindowLimits:
    """The limits for one kind of training."""

    calibration: Calibration
    kind: Kind

    def calibrated(self, start: int, steps: int) -> LimitsEntry:
        """The limits for exactly this segment; raises `UnavailableError` if none are calibrated."""
        found = self.calibration.entry_at(self.kind, start, steps)
        if found is None:
            raise UnavailableError(f"no limits are calibrated for {' '.join(self.kind)} over {steps} steps")
        return found

    def near(self, start: int, steps: int) -> LimitsEntry:
        """As `calibrated`; a longer window, up to `STRETCHED_MAX`, has the stretched limits of the longest one."""
        found = limits_of(self.calibration, self.kind, start, steps)
        if found is None:
            raise UnavailableError(f"no limits are calibrated near {' '.join(self.kind)} over {steps} steps")
        return found


def loosest(calibration: Calibration, start: int, steps: int, read: Callable[[LimitsEntry], float]) -> float:
    """The loosest value of one limit among all kinds of training; infinite if none is calibrated."""
    found = [limits_of(calibration, kind, start, steps) for kind in kinds_in(calibration)]
    return max((read(each) for each in found if each is not None), default=math.inf)


def limits_of(calibration: Calibration, kind: Kind, start: int, steps: int) -> LimitsEntry | None:
    """The limits for `steps` steps from state `start`, stretched if necessary; `None` if the window is too long."""
    found = calibration.entry_at(kind, start, steps)
    if found is not None:
        return found
    fitting = [each for each in calibration.entries if _kind_of(each) == kind and each.from_step <= start]
    longest = max(fitting, key=lambda each: (each.window, each.from_step), default=None)
    if longest is None or steps > STRETCHED_MAX * longest.window:
        return None
    return stretched(longest, steps)


def kinds_in(calibration: Calibration) -> tuple[Kind, ...]:
    """The kinds of training that are calibrated."""
    return tuple(sorted({_kind_of(each) for each in calibration.entries}))


def stretched(entry: LimitsEntry, steps: int) -> LimitsEntry:
    """An entry for a longer window: its limits times (steps ÷ window)³."""
    factor = (steps / entry.window) ** GROWTH
    changed = {
        "window": steps,
        "weights": _times(entry.weights, factor),
        "memory": _times(entry.memory, factor),
        "projection": entry.projection * factor,
        "loss_band": entry.loss_band * factor,
    }
    return entry.model_copy(update=changed)


def _times(limits: StateLimits, factor: float) -> StateLimits:
    values = {name: value for name, value in limits.model_dump().items() if isinstance(value, float)}
    return limits.model_copy(update={name: value * factor for name, value in values.items()})


def _kind_of(entry: LimitsEntry) -> Kind:
    return entry.family, entry.optimizer, entry.dtype

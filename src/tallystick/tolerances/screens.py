"""Screens: checks of neighbouring anchors that need no replay.

A screen that disagrees names an anchor to examine; one that agrees proves nothing. `second_moment_floor` is a property
of the optimizer itself. The limits of the profile and the cosine are calibrated on honest runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tallystick.tolerances.streams import side_by_side
from tallystick.tolerances.sums import inner, square_sum
from tallystick.tolerances.tolerance import Finding, Values, as_tensor, roundoff

ROUNDINGS_PER_STEP = 4  # of β₂, of β₂·v, of (1 - β₂)·g², of their sum
LEAST_MOMENT = 2.0**-120  # below it, rounding of subnormal numbers is no longer relative
MAD_TO_SIGMA = 1.4826  # of a normal distribution


def second_moment_floor(
    before: Values,
    after: Values,
    beta2: float,
    steps: int,
    *,
    where: str = "",
) -> Finding:
    """How far Adam's second moment v' after S steps falls below β₂^S · v.

    It cannot fall below, since v' = β₂·v + (1 - β₂)·g² in every step. The distance is the largest relative shortfall.
    The rounding of S steps in the moments' own dtype is allowed. A moment that is negative or not finite never agrees.
    An optimizer reset between two anchors falls short by up to 1.
    """
    shortfall, pair = 0.0, (as_tensor(before), as_tensor(after))
    for old, new in side_by_side(*pair):
        if not all(values.min() >= 0 and values.max() < math.inf for values in (old, new)):  # nor with a NaN
            return Finding(math.nan, 0.0, "second-moment", where)
        floor = old * beta2**steps
        with np.errstate(over="ignore"):
            left = np.divide(new, floor, out=np.ones_like(floor), where=floor > LEAST_MOMENT)
        shortfall = max(shortfall, 1 - float(left.min()))
    return Finding(shortfall, ROUNDINGS_PER_STEP * steps * roundoff(*pair), "second-moment", where)


def update_profile(norms: Sequence[float], allowed: float = 8.0) -> Finding:
    """The segment whose update per unit of learning rate stands out most, in robust standard deviations.

    The distance is |log norm - median| / (1.4826 · MAD) over the logarithms of `norms`. It is infinite for a norm that
    is zero, negative or not finite. `where` is the index into `norms`.
    """
    values = np.asarray(norms, np.float64)
    usable = np.isfinite(values) & (values > 0)
    if not usable.all():
        return Finding(math.inf, allowed, "update-profile", str(int(np.argmin(usable))))
    if values.size < 3:
        return Finding(0.0, allowed, "update-profile")
    gaps = _robust_gaps(np.log(values))
    return Finding(float(gaps.max()), allowed, "update-profile", str(int(gaps.argmax())))


def moment_cosine(before: Values, after: Values, moment: Values, *, allowed: float = 1.0, where: str = "") -> Finding:
    """How far the update points away from the descent direction of the first moment: 1 + cos(Δw, m).

    0 is straight down the moment, 1 at a right angle to it, 2 straight up. It suits segments much shorter than
    1 / (1 - β₁) steps. If the update or the moment is zero, the distance is NaN and never agrees.
    """
    along = update = size = 0.0
    for start, end, direction in side_by_side(*map(as_tensor, (before, after, moment))):
        with np.errstate(all="ignore"):
            along += inner(end - start, direction)
            update += square_sum(end - start)
            size += square_sum(direction)
    scale = math.sqrt(update) * math.sqrt(size)
    return Finding(1 + along / scale if scale else math.nan, allowed, "moment-cosine", where)


def _robust_gaps(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Distances from the median in robust standard deviations."""
    gaps = np.abs(values - np.median(values))
    spread = MAD_TO_SIGMA * float(np.median(gaps))
    if spread == 0.0:
        return np.where(gaps > 1e-12, np.inf, 0.0)
    return gaps / spread

"""Calibrated thresholds: how far honest operators lie from the exact result, as percentiles over their elements.

The unit is the *share*: |claimed − reference| ÷ the operator's deterministic bound at that element, so that one
profile fits inputs of any magnitude. Both are computed from the claimed inputs, which is why errors do not add up from
one operator to the next. (NAO, "empirical percentile profiles", with the exact reference in place of a second device.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.tolerances.tolerance import Finding

QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
SUPPORT: Final = (32, 128, 1024, 1)
"""The number of elements from which a percentile says more than chance; the maximum always counts."""
SAFETY: Final = 3.0
"""How many times the largest share seen on any calibrated stack is still allowed."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """The error of one operator's output: percentiles at `QUANTILES`, and |mean share| as a measure of bias.

    `absolute` is in the operator's unit, `relative` in parts of the reference and `ulp` in units in the last place of
    the output's dtype, both 0 where the reference is 0. `undetermined` elements have no finite bound and are left out.
    """

    share: tuple[float, ...]
    absolute: tuple[float, ...]
    relative: tuple[float, ...]
    ulp: tuple[float, ...]
    bias: float
    elements: int
    undetermined: int = 0

    @classmethod
    def of(cls, row: npt.ArrayLike) -> Errors:
        """The errors that `row` gave as numbers."""
        numbers = np.asarray(row, np.float64).tolist()
        share, absolute, relative, ulp = (tuple(numbers[start : start + 4]) for start in (0, 4, 8, 12))
        return cls(share, absolute, relative, ulp, numbers[16], int(numbers[17]), int(numbers[18]))

    def row(self) -> Floats:
        """All figures in one F64[19]: the largest of several errors are the maxima of their rows."""
        figures = (*self.share, *self.absolute, *self.relative, *self.ulp)
        return np.array([*figures, self.bias, self.elements, self.undetermined], np.float64)

    def joined(self, other: Errors) -> Errors:
        """The larger of both in every respect."""
        return Errors.of(np.maximum(self.row(), other.row()))


NO_ERRORS: Final = Errors((0.0,) * 4, (0.0,) * 4, (0.0,) * 4, (0.0,) * 4, 0.0, 0)


def errors_of(claimed: Floats, reference: Floats, radius: Floats, unit_roundoff: float) -> Errors:
    """The errors of a claimed output; the three arrays have one shape, `unit_roundoff` is that of the output's dtype.

    Where the reference is not finite the claim has to be the same: otherwise its share is infinite.
    """
    claimed, reference, radius = (np.asarray(a, np.float64).ravel() for a in (claimed, reference, radius))
    determined = np.isfinite(radius)
    signed = _shares(claimed[determined], reference[determined], radius[determined])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        distance = np.where(signed == 0, 0.0, np.abs(claimed - reference)[determined])
        size = np.abs(reference[determined])
        relative = np.where(size == 0, 0.0, distance / size)
        ulp = np.where(size == 0, 0.0, distance / _last_place(size, unit_roundoff))
    return Errors(
        percentiles(np.abs(signed)),
        percentiles(distance),
        percentiles(relative),
        percentiles(ulp),
        _bias(signed),
        int(signed.size),
        int(np.count_nonzero(~determined)),
    )


def rounding_errors(reference: Floats, radius: Floats, unit_roundoff: float) -> Errors:
    """The errors of an output that is exact but for its own rounding: at most u |reference|, in no direction.

    Few elements may by chance be rounded less than that on every stack, and more on the next: calibrated errors are
    joined with these.
    """
    distance = np.minimum(unit_roundoff * np.abs(reference), radius)
    moved = np.where(np.isfinite(reference), reference + np.where(np.isfinite(distance), distance, 0.0), reference)
    return replace(errors_of(moved, reference, radius, unit_roundoff), bias=0.0)


def percentiles(values: Floats) -> tuple[float, ...]:
    """The values at `QUANTILES`, each one that occurs; zeros for no values, infinite where a value is NaN."""
    if not values.size:
        return (0.0,) * len(QUANTILES)
    ordered = np.sort(np.where(np.isnan(values), np.inf, values))
    return tuple(float(ordered[math.ceil(quantile * (values.size - 1))]) for quantile in QUANTILES)


@dataclass(frozen=True)
class Threshold:
    """A tolerance by calibration: every percentile within `safety` times the calibrated one, and never over the bound.

    Its false-reject rate is measured by leaving one stack out (docs/calibration.md).
    """

    calibrated: Errors
    safety: float = SAFETY

    def allowed(self) -> tuple[float, ...]:
        """The largest share allowed at each of `QUANTILES`; a share of 1 is the proven bound."""
        return tuple(min(1.0, self.safety * share) for share in self.calibrated.share)

    def judge(self, errors: Errors) -> Finding:
        """The worst percentile as a multiple of what is allowed there."""
        pairs = zip(QUANTILES, SUPPORT, errors.share, self.allowed(), strict=True)
        ratios = {
            f"{q:.0%} of elements": _ratio(s, a) for q, support, s, a in pairs if max(errors.elements, 1) >= support
        }
        if errors.elements >= SUPPORT[1]:
            ratios["bias"] = _ratio(errors.bias, self.bias_allowed(errors.elements))
        where = max(ratios, key=lambda name: ratios[name])
        return Finding(ratios[where], 1.0, "threshold", where)

    def bias_allowed(self, elements: int) -> float:
        """The largest |mean share|: unbiased shares have a mean of their size ÷ √n, at times six times that."""
        chance = 6.0 * self.calibrated.share[1] / math.sqrt(elements)
        return self.safety * self.calibrated.bias + chance


def join(errors: Iterable[Errors]) -> Errors:
    """The largest errors of all."""
    found = NO_ERRORS
    for one in errors:
        found = found.joined(one)
    return found


def _shares(claimed: Floats, reference: Floats, radius: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = claimed - reference
        same = (claimed == reference) | (np.isnan(claimed) & np.isnan(reference))
        return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference / radius))


def _bias(signed: Floats) -> float:
    finite = signed[np.isfinite(signed)]
    return abs(float(finite.mean())) if finite.size else 0.0


def _last_place(size: Floats, unit_roundoff: float) -> Floats:
    """Units in the last place: 2u times the power of two at or below the value."""
    exponent = np.frexp(size)[1] - 1
    return np.asarray(np.ldexp(2.0 * unit_roundoff, np.clip(exponent, -1000, 1000)), np.float64)


def _ratio(found: float, allowed: float) -> float:
    if found == 0.0:
        return 0.0
    return found / allowed if allowed > 0.0 else math.inf

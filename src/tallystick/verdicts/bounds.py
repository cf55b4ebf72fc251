"""Proven bounds on the rounding error of one operator, and calibrated thresholds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError
from tallystick.verdicts.tolerance import Finding, ratio

# A proven bound on the rounding error of one operator.
#
# Every honest evaluation in the stated precision lies within the bound.

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """Agreement of a claimed output with a reference, element by element: |claimed − reference| ≤ radius.

    `reference` and `radius` are float64 arrays of one shape. An element with an infinite radius is undetermined. Where
    the reference is not finite but the radius is, the claim must be the same infinity, or NaN where the reference is
    NaN. A radius of 0 demands the exact value.
    """

    reference: Floats
    radius: Floats

    def __post_init__(self) -> None:
        if self.reference.shape != self.radius.shape:
            raise MalformedError(f"a bound of shape {self.radius.shape} on a reference of {self.reference.shape}")

    @property
    def undetermined(self) -> int:
        """The number of elements with an infinite radius; any value agrees there."""
        return int(np.count_nonzero(~np.isfinite(self.radius)))

    @property
    def decides(self) -> bool:
        """Whether at least one element is determined; true as well for an array without elements."""
        return self.undetermined < self.radius.size or self.radius.size == 0

    def compare(self, claimed: npt.NDArray[Any]) -> Finding:
        """The largest |claimed − reference| ÷ radius over the determined elements; at most 1 is allowed.

        Raises `MalformedError` if `claimed` has another shape.
        """
        if claimed.shape != self.reference.shape:
            raise MalformedError(f"a claim of shape {claimed.shape} for a reference of {self.reference.shape}")
        shares = self.shares(claimed)
        detail = f"{self.undetermined} of {shares.size} elements are undetermined" if self.undetermined else ""
        if not shares.size:
            return Finding(0.0, 1.0, "bound", "", detail)
        worst = int(np.argmax(shares))
        place = ",".join(str(int(i)) for i in np.unravel_index(worst, self.reference.shape))
        return Finding(float(shares.flat[worst]), 1.0, "bound", f"element [{place}]", detail)

    def shares(self, claimed: npt.NDArray[Any]) -> Floats:
        """Each element's distance in units of its radius, float64 in the shape of the reference.

        It is 0 where the element is undetermined, and infinite where only one side is finite or a NaN.
        """
        shares = np.abs(_signed_shares(claimed.astype(np.float64), self.reference, self.radius))
        return np.where(np.isfinite(self.radius), shares, 0.0)


def _signed_shares(claimed: Floats, reference: Floats, radius: Floats) -> Floats:
    """(claimed − reference) ÷ radius: 0 for the same value, also NaN; infinite where only one side is a NaN."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = claimed - reference
        same = (claimed == reference) | (np.isnan(claimed) & np.isnan(reference))
        return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference / radius))


# Calibrated thresholds: how far honest operators lie from the exact result, as percentiles over their elements.
#
# The unit is the *share*: |claimed − reference| ÷ the operator's deterministic bound at that element. So one profile
# fits inputs of any magnitude. Reference and bound are computed from the claimed inputs, so errors do not add up from
# one operator to the next. (NAO, "empirical percentile profiles", with the exact reference in place of a second
# device.)

QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
SUPPORT: Final = (32, 128, 1024, 1)
"""The fewest elements at which each percentile is judged, below which chance dominates; the maximum always is."""
SAFETY: Final = 3.0
"""The allowed share is this many times the largest share seen on any calibrated stack."""


@dataclass(frozen=True)
class Errors:
    """The error of one operator's output: percentiles at `QUANTILES`, and |mean share| as a measure of bias.

    `absolute` is in the operator's unit, `relative` is a fraction of the reference, and `ulp` counts units in the last
    place of the output's dtype; the latter two are 0 where the reference is 0. `undetermined` is the number of elements
    without a finite bound, which are left out.
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
        """The inverse of `row`, from 19 numbers."""
        numbers = np.asarray(row, np.float64).tolist()
        share, absolute, relative, ulp = (tuple(numbers[start : start + 4]) for start in (0, 4, 8, 12))
        return cls(share, absolute, relative, ulp, numbers[16], int(numbers[17]), int(numbers[18]))

    def row(self) -> Floats:
        """All figures as F64[19], so that the element-wise maximum of rows joins errors."""
        figures = (*self.share, *self.absolute, *self.relative, *self.ulp)
        return np.array([*figures, self.bias, self.elements, self.undetermined], np.float64)


NO_ERRORS: Final = Errors((0.0,) * 4, (0.0,) * 4, (0.0,) * 4, (0.0,) * 4, 0.0, 0)


def errors_of(claimed: Floats, reference: Floats, radius: Floats, unit_roundoff: float) -> Errors:
    """The errors of a claimed output; the three arrays have one shape, `unit_roundoff` is that of the output's dtype.

    Where the reference is not finite, the claim must be the same value; otherwise its share is infinite.
    """
    claimed, reference, radius = (np.asarray(a, np.float64).ravel() for a in (claimed, reference, radius))
    determined = np.isfinite(radius)
    signed = _signed_shares(claimed[determined], reference[determined], radius[determined])
    finite = signed[np.isfinite(signed)]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        distance = np.where(signed == 0, 0.0, np.abs(claimed - reference)[determined])
        size = np.abs(reference[determined])
        relative = np.where(size == 0, 0.0, distance / size)
        exponent = np.clip(np.frexp(size)[1] - 1, -1000, 1000)
        last_place = np.ldexp(2.0 * unit_roundoff, exponent)  # 2u times the power of two at or below the value
        ulp = np.where(size == 0, 0.0, distance / last_place)
    return Errors(
        percentiles(np.abs(signed)),
        percentiles(distance),
        percentiles(relative),
        percentiles(ulp),
        abs(float(finite.mean())) if finite.size else 0.0,
        int(signed.size),
        int(np.count_nonzero(~determined)),
    )


def rounding_errors(reference: Floats, radius: Floats, unit_roundoff: float) -> Errors:
    """The errors of an output that is exact except for its final rounding: at most u |reference|, without bias.

    Calibrated errors are joined with these. With few elements, every calibrated stack may by chance round by less, and
    the next stack by more.
    """
    distance = np.minimum(unit_roundoff * np.abs(reference), radius)
    moved = np.where(np.isfinite(reference), reference + np.where(np.isfinite(distance), distance, 0.0), reference)
    return replace(errors_of(moved, reference, radius, unit_roundoff), bias=0.0)


def percentiles(values: Floats) -> tuple[float, ...]:
    """The values at `QUANTILES`, taken from `values` without interpolation; zeros if empty. NaN counts as infinite."""
    if not values.size:
        return (0.0,) * len(QUANTILES)
    ordered = np.sort(np.where(np.isnan(values), np.inf, values))
    return tuple(float(ordered[math.ceil(quantile * (values.size - 1))]) for quantile in QUANTILES)


@dataclass(frozen=True)
class Threshold:
    """A calibrated tolerance: every percentile is at most `safety` times the calibrated one, and within the bound.

    Its false-reject rate is measured by leaving one stack out (docs/calibration.md).
    """

    calibrated: Errors
    safety: float = SAFETY

    def allowed(self) -> tuple[float, ...]:
        """The largest share allowed at each of `QUANTILES`; a share of 1 is the proven bound."""
        return tuple(min(1.0, self.safety * share) for share in self.calibrated.share)

    def judge(self, errors: Errors) -> Finding:
        """The worst percentile, or the bias, as a multiple of its allowed value; at most 1 agrees."""
        pairs = zip(QUANTILES, SUPPORT, errors.share, self.allowed(), strict=True)
        ratios = {
            f"{q:.0%} of elements": ratio(s, a) for q, support, s, a in pairs if max(errors.elements, 1) >= support
        }
        if errors.elements >= SUPPORT[1]:
            ratios["bias"] = ratio(errors.bias, self.bias_allowed(errors.elements))
        where = max(ratios, key=lambda name: ratios[name])
        return Finding(ratios[where], 1.0, "threshold", where)

    def bias_allowed(self, elements: int) -> float:
        """The largest |mean share| allowed. The mean of n unbiased shares may reach 6 · size ÷ √n."""
        chance = 6.0 * self.calibrated.share[1] / math.sqrt(elements)
        return self.safety * self.calibrated.bias + chance


def join(errors: Iterable[Errors]) -> Errors:
    """The element-wise largest of all `errors`; zeros without any."""
    rows = [one.row() for one in errors]
    return Errors.of(np.max(rows, axis=0)) if rows else NO_ERRORS

"""Evidence that numbers vary more than honest rounding makes them: an e-value for each number, which multiply.

Honest: given everything before, a residual r is sub-Gaussian with variance v at most. Then for every scale s > 1

    E[ exp((1 − 1/s²) r² / 2v) / s ] ≤ 1

because E[exp(λ r²/v)] ≤ (1 − 2λ)^(−1/2) for such an r. This is the likelihood ratio of a normal number with deviation
s√v against one with √v. Products of these factors are e-values, and so are means of products with fixed weights; by
Ville's inequality one ever reaches 1/α with probability α at most (`tolerances.evidence`).

Of a fingerprint, random signs make every number such a sum: with a rounding error ΔH of a block, the number of it is
Σ σᵢ Σ rⱼ ΔHᵢⱼ, of mean 0 and variance ‖ΔH‖² over the signs, whatever ΔH is (`fingerprints.projection`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from tallystick.tolerances.evidence import log_mean

SCALES: Final = (1.25, 1.5, 2.0, 3.0, 8.0)
"""How many times larger than honest numbers others are thought to be; the e-value is the mean over these."""
CHANGED: Final = 0.2
"""The share of blocks that are thought to be changed, where blocks are judged one by one."""
LARGEST: Final = 1e4
"""No single residual counts as more than so many deviations."""
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScaleTrials:
    """Of each group of numbers: how many there are, their sum of squares, and the logarithms of their e-values.

    Squares are in units of the honest variance. `logs` has a row for each of `groups`, with an entry for each scale.
    `by_block` is the logarithm of the e-value in which every block of numbers has a scale of its own, or none.
    """

    groups: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    squares: tuple[float, ...] = ()
    logs: tuple[tuple[float, ...], ...] = ()
    by_block: float = 0.0

    def __add__(self, other: Self) -> Self:
        if not (self.groups and other.groups):
            return self if self.groups else other
        assert self.groups == other.groups, "numbers of different places do not add"
        return type(self)(
            self.groups,
            tuple(a + b for a, b in zip(self.numbers, other.numbers, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
            tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(self.logs, other.logs, strict=True)),
            self.by_block + other.by_block,
        )

    @classmethod
    def of(cls, residuals: Mapping[str, Reals], variances: Mapping[str, Reals]) -> Self:
        """The trials of residuals by group, each F64[blocks, numbers]; variances have the same shapes."""
        squares = {name: _squares(each, variances[name]) for name, each in residuals.items()}
        blocks = [_logs(total, each.shape[1]) for each in squares.values() for total in [each.sum(axis=1)]]
        everywhere = np.sum(blocks, axis=0)
        own = [float(np.logaddexp(math.log(1.0 - CHANGED), math.log(CHANGED) + log_mean(row))) for row in everywhere]
        return cls(
            tuple(squares),
            tuple(each.size for each in squares.values()),
            tuple(float(each.sum()) for each in squares.values()),
            tuple(tuple(float(value) for value in each.sum(axis=0)) for each in blocks),
            float(sum(own)),
        )

    @property
    def ratios(self) -> dict[str, float]:
        """By group, how many times the honest deviation the residuals are, in the root of the mean of squares."""
        found = zip(self.groups, self.squares, self.numbers, strict=True)
        return {name: math.sqrt(total / count) if count else 0.0 for name, total, count in found}

    def log_against(self) -> float:
        """The logarithm of the e-value: the mean over scales, of each group alone, of all together, and by block."""
        if not self.groups:
            return 0.0
        together = [sum(column) for column in zip(*self.logs, strict=True)]
        scales = log_mean([value for row in (*self.logs, together) for value in row])
        return log_mean([scales, self.by_block])


def _squares(residuals: Reals, variances: Reals) -> Reals:
    """Squares in units of the variance; NaN, and what is not 0 without any variance, is as large as can be."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.square(residuals) / variances
    found = np.where(residuals == 0.0, 0.0, found)
    return np.minimum(np.where(np.isnan(found), np.inf, found), LARGEST**2)


def _logs(squares: Reals, numbers: int) -> Reals:
    """The logarithms of the e-values of blocks of so many numbers, F64[blocks, scales]."""
    scales = np.array(SCALES)
    return np.asarray(0.5 * (1.0 - scales**-2) * squares[:, None] - numbers * np.log(scales))

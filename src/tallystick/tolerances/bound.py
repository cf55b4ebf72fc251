"""A proven bound on the rounding error of one operator.

Every honest evaluation in the stated precision lies within the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.tolerances.tolerance import Finding

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
        values = claimed.astype(np.float64)
        same = (values == self.reference) | (np.isnan(values) & np.isnan(self.reference))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            shares = np.abs(values - self.reference) / self.radius
        shares = np.where(np.isnan(shares), np.inf, shares)
        return np.where(same | ~np.isfinite(self.radius), 0.0, shares)

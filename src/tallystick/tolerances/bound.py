"""A proven bound on the rounding of one operator: within it lies every honest evaluation of the stated precision."""

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

    `reference` and `radius` are float64 of one shape. An infinite radius leaves its element undetermined; where the
    reference is not finite and the radius is, the claim has to be the same infinity, or NaN beside NaN. A radius of 0
    asks for the value itself.
    """

    reference: Floats
    radius: Floats

    def __post_init__(self) -> None:
        if self.reference.shape != self.radius.shape:
            raise MalformedError(f"a bound of shape {self.radius.shape} on a reference of {self.reference.shape}")

    @property
    def undetermined(self) -> int:
        """How many elements the bound says nothing about."""
        return int(np.count_nonzero(~np.isfinite(self.radius)))

    @property
    def decides(self) -> bool:
        """Whether the bound says anything: some element is determined, or there is none at all."""
        return self.undetermined < self.radius.size or self.radius.size == 0

    def compare(self, claimed: npt.NDArray[Any]) -> Finding:
        """The largest |claimed − reference| ÷ radius over the determined elements, of 1 allowed.

        Raises `MalformedError` where `claimed` has another shape.
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
        """Each element's distance in units of its radius; 0 where undetermined, infinite where the kinds differ."""
        values = claimed.astype(np.float64)
        same = (values == self.reference) | (np.isnan(values) & np.isnan(self.reference))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            shares = np.abs(values - self.reference) / self.radius
        shares = np.where(np.isnan(shares), np.inf, shares)
        return np.where(same | ~np.isfinite(self.radius), 0.0, shares)

"""How one tensor of an opened state differs from its replay, measured in one pass in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.mismatches import count_elements
from tallystick.tolerances.streams import PIECE, side_by_side
from tallystick.tolerances.sums import inner, square_sum

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TensorDrift:
    """Sums over the elements of one tensor, with d = claimed - replayed end and Δ = replayed end - start."""

    name: str = ""
    size: int = 0
    difference_squares: float = 0.0
    update_squares: float = 0.0
    claimed_update_squares: float = 0.0
    start_squares: float = 0.0
    difference_sum: float = 0.0
    difference_along_update: float = 0.0
    element_max: float = 0.0
    mismatches: int = 0
    non_finite: int = 0

    @property
    def difference(self) -> float:
        """The norm ‖d‖."""
        return math.sqrt(self.difference_squares)

    @property
    def update(self) -> float:
        """The norm ‖Δ‖ of the replayed update."""
        return math.sqrt(self.update_squares)

    @property
    def claimed_update(self) -> float:
        """The norm of the claimed update, ‖claimed - start‖."""
        return math.sqrt(self.claimed_update_squares)

    @property
    def start(self) -> float:
        """The norm of the tensor before the segment."""
        return math.sqrt(self.start_squares)

    @property
    def bias(self) -> float:
        """The mean of d in standard errors; 0 for no difference, infinite for a constant one."""
        if self.difference_squares == 0.0:
            return 0.0
        mean = self.difference_sum / self.size
        variance = self.difference_squares / self.size - mean * mean
        return abs(mean) / math.sqrt(variance / self.size) if variance > 0.0 else math.inf

    def plus(self, other: TensorDrift) -> TensorDrift:
        """The same sums over the elements of `self` and `other` together."""
        return TensorDrift(
            self.name,
            self.size + other.size,
            self.difference_squares + other.difference_squares,
            self.update_squares + other.update_squares,
            self.claimed_update_squares + other.claimed_update_squares,
            self.start_squares + other.start_squares,
            self.difference_sum + other.difference_sum,
            self.difference_along_update + other.difference_along_update,
            max(self.element_max, other.element_max),
            self.mismatches + other.mismatches,
            self.non_finite + other.non_finite,
        )


def measure_drift(name: str, claimed: Tensor, start: Tensor, end: Tensor, piece: int = PIECE) -> TensorDrift:
    """The drift of a tensor from three tensors of one shape; memory stays within a few pieces."""
    total = TensorDrift(name)
    for parts in side_by_side(claimed, start, end, piece=piece):
        total = total.plus(_measure_piece(*parts))
    return total


def _measure_piece(claimed: Array, start: Array, end: Array) -> TensorDrift:
    finite = np.isfinite(claimed) & np.isfinite(start) & np.isfinite(end)
    if not finite.all():
        return TensorDrift(size=claimed.size, non_finite=int(np.count_nonzero(~finite)))
    with np.errstate(all="ignore"):
        difference, update = claimed - end, end - start
        return TensorDrift(
            size=claimed.size,
            difference_squares=square_sum(difference),
            update_squares=square_sum(update),
            claimed_update_squares=square_sum(claimed - start),
            start_squares=square_sum(start),
            difference_sum=float(difference.sum()),
            difference_along_update=inner(difference, update),
            element_max=float(np.max(np.abs(difference), initial=0.0)),
            mismatches=count_elements(claimed, end),
        )

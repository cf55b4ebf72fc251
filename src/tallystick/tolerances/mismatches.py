"""Bucket mismatches: the number of elements of an opened state that lie in another bucket than in the replay.

The expected count is Λ = Σ |w' - w| / gap (docs/bucket_agreement.md). Honest drift is correlated and heavy-tailed. So
the allowed number is calibrated and not computed from a binomial distribution.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.tolerances.grids import Mode, bucket_codes, in_range
from tallystick.tolerances.streams import side_by_side
from tallystick.tolerances.tolerance import States, Values, as_state, is_float


def count_mismatches(
    claimed: Values | States, replayed: Values | States, mode: Mode = "fp16_rne", eps: float = 1e-6
) -> dict[str, int]:
    """The number of elements in another bucket, per floating-point tensor.

    If either value of an element has no bucket (not finite, or out of range), the element counts unless both are equal.
    Raises `MalformedError` unless both sides hold the same names and shapes.
    """
    left, right = as_state(claimed), as_state(replayed)
    if left.keys() != right.keys():
        raise MalformedError("the states do not hold the same tensors")
    return {
        name: sum(count_elements(a, b, mode, eps) for a, b in side_by_side(left[name], right[name]))
        for name in left
        if is_float(left[name])
    }


def count_elements(
    claimed: npt.NDArray[np.float64],
    replayed: npt.NDArray[np.float64],
    mode: Mode = "fp16_rne",
    eps: float = 1e-6,
) -> int:
    """The number of elements of two arrays of one shape that lie in different buckets."""
    inside = in_range(claimed, mode, eps) & in_range(replayed, mode, eps)
    moved = bucket_codes(claimed[inside], mode, eps) != bucket_codes(replayed[inside], mode, eps)
    return int(np.count_nonzero(moved) + np.count_nonzero(claimed[~inside] != replayed[~inside]))

"""How far a child's outputs may lie from what a challenger computes, who starts from the prover's own values.

Errors do not add up from child to child, because each child starts from what the prover opened; inside a child of k
operators they grow. The unit is the roundoff u of the value's dtype at the value's scale,

    e = max |claimed − own| / (u · (|own| + rms(own)))

and honest stacks stay below `ALLOWED` · √k (docs/data/dispute_stacks.json has the largest e ÷ √k seen on every pair of
stacks). The root is that of a random walk; what single operators amplify, such as a division by a small second moment,
is in the factor. Whole numbers and truth values are equal, unless they were chosen by comparing floats.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.operators.precision import FORMATS
from tallystick.tensors import Tensor, TensorSpec

ALLOWED: Final = 1024.0
"""Times √k units: what the children of honest stacks stay below; measured, with a margin (see above)."""
CHOICES_ALLOWED: Final = 0.01
"""The share of whole numbers or truth values, chosen among floats, that may differ."""


def deviation(claimed: Tensor, own: Tensor, operators: int) -> float:
    """How far a claimed value lies from one's own after `operators` operators: more than 1 leaves the tolerance.

    Tensors of different specs are infinitely far apart, and so are finite and non-finite numbers.
    """
    if is_same(claimed, own):
        return 0.0
    if TensorSpec.of(claimed) != TensorSpec.of(own):
        return math.inf
    if claimed.dtype not in FORMATS:
        return _differing(claimed.array(), own.array()) / CHOICES_ALLOWED
    units = distance_in_units(claimed, own)
    return units / (ALLOWED * math.sqrt(max(operators, 1)))


def is_same(claimed: Tensor, own: Tensor) -> bool:
    """Whether two tensors have the same spec and the same bytes."""
    has_spec = (claimed.dtype, claimed.shape) == (own.dtype, own.shape)
    return has_spec and np.array_equal(np.frombuffer(claimed.data, np.uint8), np.frombuffer(own.data, np.uint8))


def distance_in_units(claimed: Tensor, own: Tensor) -> float:
    """The largest distance of two elements in roundoffs at their scale; both of one float spec."""
    theirs, ours = (tensor.values().astype(np.float64).ravel() for tensor in (claimed, own))
    same = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
    if not np.isfinite(theirs[~same]).all() or not np.isfinite(ours[~same]).all():
        return math.inf
    unit, smallest = FORMATS[claimed.dtype].unit, FORMATS[claimed.dtype].half_step
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.abs(ours[~same]) + _root_mean_square(ours[np.isfinite(ours)])
        found = np.abs(theirs[~same] - ours[~same]) / np.maximum(unit * scale, smallest)
    return float(np.max(np.where(np.isnan(found), np.inf, found), initial=0.0))


def _root_mean_square(values: npt.NDArray[np.float64]) -> float:
    """Scaled, so that no square overflows."""
    largest = float(np.max(np.abs(values), initial=0.0))
    return largest * math.sqrt(float(np.mean((values / largest) ** 2))) if largest else 0.0


def _differing(claimed: npt.NDArray[np.generic], own: npt.NDArray[np.generic]) -> float:
    return float(np.mean(claimed != own))

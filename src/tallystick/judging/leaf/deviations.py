"""Finds the elements of a claimed result that differ most from the result of the judge's own kernel.

A deviation only selects elements to judge; it is never itself a reason. A prover may hide one wrong element among
millions, and a few random draws miss it. So the elements that deviate most are judged exactly. Three measures are used:
the absolute distance, the distance relative to the element's size, and the distance relative to its size and the scale
of the elements around it. An element far beyond its bound ranks high in one of them, unless the prover moved many
others, with wider bounds, almost to their bounds.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.judging.leaf.sampling import chosen_places
from tallystick.judging.operator.places import Places
from tallystick.operators.precision import FORMATS
from tallystick.tensors.tensor import Tensor

BY_EACH: Final = 32
"""The number of elements that are judged for each measure."""
DISCRETE_MAX: Final = 1024
"""The number of differing integers and booleans that are judged."""
SHORTEST: Final = 8
"""The shortest axis along which a root mean square is used as a scale."""
Floats = npt.NDArray[np.float64]


def deviating_places(claimed: Tensor, own: Tensor, nonce: bytes) -> Places:
    """Flat places, ascending, of the elements of a claimed result that differ most from `own`, of equal spec.

    Integers and booleans have no distance: the nonce selects among those that differ.
    """
    if not own.array().size:
        return np.empty(0, np.int64)
    if claimed.dtype not in FORMATS:
        differing = np.flatnonzero(claimed.array().reshape(-1) != own.array().reshape(-1))
        return differing[chosen_places(nonce, "suspects", differing.size, DISCRETE_MAX)]
    theirs, ours = claimed.values().astype(np.float64), own.values().astype(np.float64)
    least = FORMATS[claimed.dtype].smallest_normal
    distance, size = _distance(theirs, ours), np.where(np.isfinite(ours), np.abs(ours), 0.0)
    measures = (distance, distance / np.maximum(size, least), distance / np.maximum(size + _scale(size), least))
    return np.unique(np.concatenate([_largest(measure.reshape(-1)) for measure in measures]))


def _distance(x: Floats, y: Floats) -> Floats:
    """|x − y|; infinite if NaNs or infinities differ, and a small number for zeros of different signs."""
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        off = np.where(same, 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf, posinf=np.inf))
    turned = (x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y))
    return np.where(turned, np.finfo(np.float64).tiny, off)


def _scale(size: Floats) -> Floats:
    """The smallest root mean square along the axes through each element; that of all elements if axes are short."""
    largest = float(size.max(initial=0.0)) or 1.0
    squares = np.square(size / largest)
    axes = [axis for axis, side in enumerate(size.shape) if side >= SHORTEST]
    means = [squares.mean(axis=axis, keepdims=True) for axis in axes] or [squares.mean(keepdims=True)]
    return np.asarray(np.sqrt(reduce(np.minimum, means)) * largest, np.float64)


def _largest(measure: Floats) -> Places:
    """The places of the few largest elements above 0."""
    few = min(BY_EACH, measure.size)
    places = np.argpartition(measure, measure.size - few)[measure.size - few :]
    return np.asarray(places[measure[places] > 0], np.int64)

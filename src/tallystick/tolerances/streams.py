"""Tensors read in pieces, so that a comparison's memory does not grow with the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.tensors import Tensor

PIECE = 1 << 18


def pieces(tensor: Tensor, piece: int = PIECE) -> Iterator[npt.NDArray[np.float64]]:
    """The elements in row-major order as float64, at most `piece` at a time; every dtype widens exactly."""
    flat = tensor.array().reshape(-1)
    for start in range(0, flat.size, piece):
        yield Tensor.of(flat[start : start + piece], tensor.dtype).values().astype(np.float64)


def element_count(tensors: Iterable[Tensor]) -> int:
    """The number of elements of all tensors together."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def norm(tensors: Iterable[Tensor]) -> float:
    """The Euclidean norm of all tensors together, accumulated in float64."""
    return math.sqrt(math.fsum(square_sum(part) for tensor in tensors for part in pieces(tensor)))


def difference_norm(left: Iterable[Tensor], right: Iterable[Tensor]) -> float:
    """The Euclidean norm of `left - right`, tensor by tensor; both hold the same shapes in the same order."""
    return math.sqrt(
        math.fsum(square_sum(a - b) for pair in zip(left, right, strict=True) for a, b in both(*pair))
    )


def both(left: Tensor, right: Tensor) -> Iterator[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Two tensors of one shape, read side by side."""
    assert left.shape == right.shape, f"{left.shape} beside {right.shape}"
    return zip(pieces(left), pieces(right), strict=True)


def square_sum(values: npt.NDArray[np.float64]) -> float:
    """The sum of squares; infinite or NaN where the values are."""
    with np.errstate(all="ignore"):
        return float(np.dot(values, values))


def ratio(part: float, whole: float) -> float:
    """`part / whole`, where nothing over nothing is 0, and something over nothing infinite."""
    if whole == 0.0:
        return math.nan if math.isnan(part) else math.inf if part else 0.0
    return part / whole


def is_finite(values: npt.NDArray[Any]) -> bool:
    """Whether no element is NaN or infinite."""
    return bool(np.isfinite(values).all())

"""Tensors read in pieces, so that a comparison's memory does not grow with the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.sums import square_sum
from tallystick.tolerances.tolerance import is_float

PIECE = 1 << 18


def pieces(tensor: Tensor, piece: int = PIECE) -> Iterator[npt.NDArray[np.float64]]:
    """The elements in row-major order as float64, at most `piece` at a time; the conversion is always exact."""
    for values in narrow_pieces(tensor, piece):
        with np.errstate(invalid="ignore"):  # a signalling NaN stays a NaN
            yield values.astype(np.float64)


def narrow_pieces(tensor: Tensor, piece: int = PIECE) -> Iterator[npt.NDArray[Any]]:
    """As `pieces`, but in the narrowest type that NumPy computes with: 16-bit floats become float32, others stay."""
    flat = tensor.array().reshape(-1)
    for start in range(0, flat.size, piece):
        yield Tensor.of(flat[start : start + piece], tensor.dtype).values()


def element_count(tensors: Iterable[Tensor]) -> int:
    """The number of elements of all tensors together."""
    return sum(math.prod(tensor.shape) for tensor in tensors)


def not_finite(state: Mapping[str, Tensor]) -> list[str]:
    """The names of weights and optimizer slots that hold NaN or ∞. Buffers are skipped: a mask may hold −∞."""
    learned = (name for name in state if name.startswith(("weights.", "optimizer.")) and is_float(state[name]))
    return [name for name in learned if not all(np.isfinite(values).all() for values in narrow_pieces(state[name]))]


def norm(tensors: Iterable[Tensor]) -> float:
    """The Euclidean norm of all tensors together, accumulated in float64."""
    return math.sqrt(math.fsum(square_sum(part) for tensor in tensors for part in pieces(tensor)))


def difference_norm(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The Euclidean norm of `left - right`; raises `MalformedError` if counts or shapes differ."""
    if len(left) != len(right):
        raise MalformedError(f"{len(left)} tensors beside {len(right)}")
    pairs = zip(left, right, strict=True)
    return math.sqrt(math.fsum(square_sum(a - b) for pair in pairs for a, b in side_by_side(*pair)))


def side_by_side(*tensors: Tensor, piece: int = PIECE) -> Iterator[tuple[npt.NDArray[np.float64], ...]]:
    """Matching pieces of tensors of one shape; raises `MalformedError` if the shapes differ."""
    shapes = [tensor.shape for tensor in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise MalformedError(f"tensors of unlike shapes {', '.join(str(list(shape)) for shape in shapes)}")
    return zip(*(pieces(tensor, piece) for tensor in tensors), strict=True)


def ratio(part: float, whole: float) -> float:
    """`part / whole`, with 0 / 0 = 0 and x / 0 = ∞; NaN stays NaN."""
    if whole == 0.0:
        return math.nan if math.isnan(part) else math.inf if part else 0.0
    return part / whole

"""Operators by their definitions in NumPy. Every sum goes from its first term to its last and is rounded at each.

This is the order of a plain loop. Of all honest orders it has the largest errors. Compilers for small devices emit it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tallystick.graphs.reference import Reference
from tallystick.operators.algebra import Axes
from tallystick.operators.arrays import NUMPY
from tallystick.operators.values import Value, Values


class Loops(Values):
    """`Values` on NumPy, with loops for sums and products of matrices."""

    def sum(self, x: Value, axes: Axes, keep: bool = False, short: int = 0) -> Value:
        """See `Algebra.sum`."""
        kept = [side for axis, side in enumerate(x.shape) if axis not in axes]
        terms = np.moveaxis(x.array, axes, range(len(axes))).reshape(-1, *kept)
        total = np.zeros(kept, x.array.dtype)
        for term in terms:
            total = total + term
        shape = [1 if axis in axes else side for axis, side in enumerate(x.shape)] if keep else kept
        return Value(total.reshape(shape), x.dtype)


class _Library:
    """NumPy with its own matrix product."""

    def __getattr__(self, name: str) -> Any:
        return getattr(NUMPY, name)

    def matmul(self, x: Any, y: Any) -> Any:
        """The matrix product as a sum of rank-one updates, in order."""
        total = np.zeros((*x.shape[:-1], y.shape[-1]), x.dtype)
        for k in range(x.shape[-1]):
            total += x[..., :, k, None] * y[..., None, k, :]
        return total


class Definitions(Reference):
    """NumPy in the dtypes of the graph: every operator by its definition, rounded after each operation."""

    def __init__(self, algebra: Values) -> None:
        self.algebra = algebra


BY_LIBRARY: Final = Values(NUMPY)
IN_ORDER: Final = Loops(_Library())

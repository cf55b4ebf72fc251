"""Products of matrices, bounded by norms: Σ|x||w| ≤ ‖x‖₂‖w‖₂ (Cauchy and Schwarz)."""

from __future__ import annotations

import math
from typing import Final

from tallystick.operators.algebra import Axes
from tallystick.operators.precision import FORMATS
from tallystick.operators.values import Value, Values

LOST: Final = 2 * FORMATS["F32"].smallest_normal
"""What a square loses by an underflow in F32, and more."""


class Norms(Values):
    """The algebra of arrays with ‖x‖₂‖y‖₂ in place of Σxy, which is not larger."""

    def dot(
        self, x: Value, y: Value, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ()), short: int = 0
    ) -> Value:
        """See `Algebra.dot`; norms are products over one term."""
        left, right = (self._norm(each, axes) for each, axes in zip((x, y), contract, strict=True))
        return super().dot(left, right, contract, batch, short)

    def _norm(self, x: Value, axes: Axes) -> Value:
        terms = math.prod(x.shape[axis] for axis in axes)
        squares = self.sum(Value(x.array * x.array, x.dtype), axes, keep=True)
        return Value(self.library.xp.sqrt(squares.array + terms * LOST), x.dtype)

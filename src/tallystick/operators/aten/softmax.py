"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

from tallystick.operators.algebra import Algebra, V
from tallystick.operators.aten.arguments import axis_of
from tallystick.operators.operator import Exactness, Family

FAMILY = Family()


@FAMILY.operator(
    "aten._softmax.default", "Tensor self, int dim, bool half_to_float", "e^x / Σ e^x along dim", Exactness.COMPOSITE
)
def softmax(a: Algebra[V], self: V, dim: int, half_to_float: bool) -> V:
    """Shifted by the maximum: |softmax| ≤ 1, no overflow."""
    x, axis = a.wide(self), axis_of(self, dim)
    e = a.exp(a.sub(x, a.max(x, (axis,), keep=True)))
    return a.cast(a.div(e, a.sum(e, (axis,), keep=True)), "F32" if half_to_float else self.dtype)

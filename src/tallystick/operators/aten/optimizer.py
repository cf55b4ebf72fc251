"""The arithmetic with three operands that optimizers use."""

from __future__ import annotations

from typing import Any

from tallystick.operators.algebra import Algebra, V
from tallystick.operators.aten.arguments import met
from tallystick.operators.definition import Exactness, Family, Scalar

FAMILY = Family()
_THREE = "Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1"


@FAMILY.operator("aten.addcmul.default", _THREE, "self + value · tensor1 · tensor2", Exactness.COMPOSITE)
def addcmul(a: Algebra[V], self: V, tensor1: V, tensor2: V, value: Scalar) -> V:
    """Kernels multiply in either order, and may contract the last product with the sum."""
    dtype, (x, y, z) = met(a, self, tensor1, tensor2)
    return a.cast(a.add(x, _scaled(a, a.mul(y, z), value)), dtype)


@FAMILY.operator("aten.addcdiv.default", _THREE, "self + value · tensor1 / tensor2", Exactness.COMPOSITE)
def addcdiv(a: Algebra[V], self: V, tensor1: V, tensor2: V, value: Scalar) -> V:
    """Floats only; kernels multiply before they divide, or after."""
    dtype, (x, y, z) = met(a, self, tensor1, tensor2)
    return a.cast(a.add(x, _scaled(a, a.div(y, z), value)), dtype)


@FAMILY.operator(
    "aten.lerp.Scalar", "Tensor self, Tensor end, Scalar weight", "self + weight · (end − self)", Exactness.COMPOSITE
)
def lerp(a: Algebra[V], self: V, end: V, weight: Scalar) -> V:
    """From the nearer of both ends: from `self` if |weight| < 1/2, else end − (end − self) · (1 − weight)."""
    x, y = a.wide(self), a.wide(end)
    number = a.full((), float(weight), x.dtype)
    nearer = _from_start if abs(weight) < 0.5 else _from_end
    return a.cast(nearer(a, x, y, number), self.dtype)


@FAMILY.operator(
    "aten.lerp.Tensor", "Tensor self, Tensor end, Tensor weight", "self + weight · (end − self)", Exactness.COMPOSITE
)
def lerp_tensor(a: Algebra[V], self: V, end: V, weight: V) -> V:
    """As `lerp`, for each weight."""
    x, y, w = (a.wide(each) for each in (self, end, weight))
    is_near = a.compare(a.abs(w), 0.5, "lt")
    return a.cast(a.where(is_near, _from_start(a, x, y, w), _from_end(a, x, y, w)), self.dtype)


def _from_start(a: Algebra[V], x: V, y: V, weight: V) -> V:
    return a.add(x, a.mul(weight, a.sub(y, x)))


def _from_end(a: Algebra[V], x: V, y: V, weight: V) -> V:
    return a.sub(y, a.mul(a.sub(y, x), a.sub(1, weight)))


def _scaled(a: Algebra[V], x: V, value: Scalar) -> Any:
    return x if value == 1 else a.mul(x, value)

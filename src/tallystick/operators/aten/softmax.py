"""Softmax, its logarithm, and their gradients.

Shifted by the maximum, so that nothing overflows. Kernels that run over tiles and rescale a running sum round a few
times more, as fused attention does; those of PyTorch for softmax alone do not, but some of them round powers of e,
sums and their logarithms to 16 bits where that is the dtype of the result.
"""

from __future__ import annotations

from tallystick.operators.algebra import Algebra, V
from tallystick.operators.aten.arguments import axis_of, lifted, stored
from tallystick.operators.definition import Exactness, Family

FAMILY = Family()
_NARROW = ("F16", "BF16")
_PLAIN = "Tensor self, int dim, bool half_to_float"
_CASTING = "Tensor self, int dim, dtype? dtype=None"
_GRADIENT = "Tensor grad_output, Tensor output, int dim, dtype input_dtype"


@FAMILY.operator("aten._softmax.default", _PLAIN, "e^x / Σ e^x along dim", Exactness.COMPOSITE)
def softmax(a: Algebra[V], self: V, dim: int, half_to_float: bool) -> V:
    """|softmax| ≤ 1. Kernels divide by the sum, or multiply by its inverse."""
    return _softmax(a, self, dim, "F32" if half_to_float else self.dtype)


@FAMILY.operator("aten.softmax.int", _CASTING, "e^x / Σ e^x along dim", Exactness.COMPOSITE)
def softmax_cast(a: Algebra[V], self: V, dim: int, dtype: str | None) -> V:
    """In `dtype`, to which `self` is converted first."""
    into = dtype or self.dtype
    return _softmax(a, a.cast(self, into), dim, into)


@FAMILY.operator("aten._safe_softmax.default", _CASTING, "softmax, 0 where all are −∞", Exactness.COMPOSITE)
def safe_softmax(a: Algebra[V], self: V, dim: int, dtype: str | None) -> V:
    """Rows without any finite element are 0 rather than NaN."""
    x = a.cast(self, dtype or self.dtype)
    if 0 in x.shape:
        return x
    axis, raised = axis_of(x, dim), lifted(a, x)
    masked = a.compare(a.max(raised, (axis,), keep=True), float("-inf"), "eq")
    return a.reshape(a.where(masked, 0, _softmax(a, raised, axis, x.dtype)), x.shape)


@FAMILY.operator("aten._log_softmax.default", _PLAIN, "x − log Σ e^x along dim", Exactness.COMPOSITE)
def log_softmax(a: Algebra[V], self: V, dim: int, half_to_float: bool) -> V:
    """(x − max) − log Σ e^(x − max), in this order: max + log Σ first would lose what differs between large logits."""
    return _log_softmax(a, self, dim, "F32" if half_to_float else self.dtype)


@FAMILY.operator("aten.log_softmax.int", _CASTING, "x − log Σ e^x along dim", Exactness.COMPOSITE)
def log_softmax_cast(a: Algebra[V], self: V, dim: int, dtype: str | None) -> V:
    """In `dtype`, to which `self` is converted first."""
    into = dtype or self.dtype
    return _log_softmax(a, a.cast(self, into), dim, into)


@FAMILY.operator(
    "aten._softmax_backward_data.default", _GRADIENT, "output · (grad − Σ grad · output)", Exactness.COMPOSITE
)
def softmax_backward(a: Algebra[V], grad_output: V, output: V, dim: int, input_dtype: str) -> V:
    """Kernels also subtract output · Σ from grad · output, which is no closer."""
    g, y, axis = a.wide(lifted(a, grad_output)), a.wide(lifted(a, output)), axis_of(output, dim)
    mean = a.sum(a.mul(g, y), (axis,), keep=True)
    return a.reshape(a.cast(a.mul(y, a.sub(g, mean)), input_dtype), output.shape)


@FAMILY.operator("aten._log_softmax_backward_data.default", _GRADIENT, "grad − e^output · Σ grad", Exactness.COMPOSITE)
def log_softmax_backward(a: Algebra[V], grad_output: V, output: V, dim: int, input_dtype: str) -> V:
    """As written."""
    g, y, axis = a.wide(lifted(a, grad_output)), a.wide(lifted(a, output)), axis_of(output, dim)
    total = a.sum(g, (axis,), keep=True)
    return a.reshape(a.cast(a.sub(g, a.mul(a.exp(y), total)), input_dtype), output.shape)


def softmax_along(a: Algebra[V], x: V, axis: int, dtype: str = "F32") -> V:
    """At the dtype of `x`, for a result of `dtype`; a tensor without elements is its own softmax."""
    if 0 in x.shape:
        return x
    e = a.exp(a.sub(x, a.max(x, (axis,), keep=True)))
    inverse = a.div(1, a.sum(e, (axis,), keep=True))
    return a.mul(stored(a, e, dtype) if dtype in _NARROW else e, inverse)


def log_softmax_along(a: Algebra[V], x: V, axis: int, dtype: str = "F32") -> V:
    """At the dtype of `x`, for a result of `dtype`; a tensor without elements is its own result."""
    if 0 in x.shape:
        return x
    shifted = a.sub(x, a.max(x, (axis,), keep=True))
    total = a.sum(a.exp(shifted), (axis,), keep=True)
    if dtype in _NARROW:
        return a.sub(shifted, stored(a, a.log(stored(a, total, dtype)), dtype))
    return a.sub(shifted, a.log(total))


def _softmax(a: Algebra[V], x: V, dim: int, into: str) -> V:
    found = softmax_along(a, a.wide(lifted(a, x)), axis_of(x, dim), into)
    return a.reshape(a.cast(found, into), x.shape)


def _log_softmax(a: Algebra[V], x: V, dim: int, into: str) -> V:
    found = log_softmax_along(a, a.wide(lifted(a, x)), axis_of(x, dim), into)
    return a.reshape(a.cast(found, into), x.shape)

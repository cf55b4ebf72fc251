"""A weight as a direction times a length, and the gradients of both (Salimans & Kingma 2016, arXiv:1602.07868)."""

from __future__ import annotations

from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, Axes, Typed, V
from tallystick.operators.aten.arguments import axis_of
from tallystick.operators.definition import Exactness, Family
from tallystick.operators.shapes import FLOATS

FAMILY: Final = Family()


@FAMILY.operator(
    "aten._weight_norm_interface.default",
    "Tensor v, Tensor g, int dim=0",
    "v · g / ‖v‖, and ‖v‖, for each index of one axis",
    Exactness.COMPOSITE,
)
def weight_norm(a: Algebra[V], v: V, g: V, dim: int) -> tuple[V, V]:
    """The axis is the first or the last; the norms of F16 and BF16 are F32."""
    axes = _others(v, g, dim)
    x = a.wide(v)
    norms = a.sqrt(a.sum(a.mul(x, x), axes, keep=True))
    return a.cast(a.mul(x, a.div(a.wide(g), norms)), v.dtype), norms


@FAMILY.operator(
    "aten._weight_norm_interface_backward.default",
    "Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim",
    "gradients of v · g / ‖v‖ by v and g",
    Exactness.COMPOSITE,
)
def weight_norm_backward(a: Algebra[V], grad_w: V, saved_v: V, saved_g: V, saved_norms: V, dim: int) -> tuple[V, V]:
    """With s = Σ grad·v: (grad − v·s/‖v‖²)·g/‖v‖, and s/‖v‖."""
    axes = _others(saved_v, saved_g, dim)
    if grad_w.shape != saved_v.shape or saved_norms.shape != saved_g.shape:
        raise MalformedError(f"a gradient {list(grad_w.shape)} and norms {list(saved_norms.shape)} of other shapes")
    w, v, g, norms = (a.wide(each) for each in (grad_w, saved_v, saved_g, saved_norms))
    by_length = a.div(a.sum(a.mul(w, v), axes, keep=True), norms)
    scale = a.div(g, norms)
    by_direction = a.sub(a.mul(w, scale), a.mul(v, a.div(a.mul(scale, by_length), norms)))
    return a.cast(by_direction, saved_v.dtype), a.cast(by_length, saved_g.dtype)


def _others(v: Typed, g: Typed, dim: int) -> Axes:
    """The axes that norms are taken over."""
    axis = axis_of(v, dim)
    if len(v.shape) < 2 or axis not in {0, len(v.shape) - 1} or v.dtype not in FLOATS or g.dtype != v.dtype:
        raise MalformedError(f"norms of {v.dtype}{list(v.shape)} along axis {dim}, lengths of {g.dtype}")
    if g.shape != tuple(side if i == axis else 1 for i, side in enumerate(v.shape)):
        raise MalformedError(f"lengths {list(g.shape)} of {list(v.shape)} along axis {dim}")
    return tuple(i for i in range(len(v.shape)) if i != axis)

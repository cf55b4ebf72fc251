"""The update of an optimizer as one operator, for fused kernels: their roundings are not those of single operators.

Adam is Kingma & Ba 2015 (Algorithm 1), AdamW Loshchilov & Hutter 2019 (Algorithm 2). The order of operations is that of
`torch._fused_adam_` and `torch._fused_adamw_`.
"""

from __future__ import annotations

from typing import Any

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, V
from tallystick.programs.operators.definition import Family

FAMILY = Family("tally")


@FAMILY.composite(
    "fused_adam", "weight and slots after step `step` of Adam, or of AdamW if decoupled, rounded once at the end"
)
def fused_adam(
    a: Algebra[V],
    weight: V,
    gradient: V,
    exp_avg: V,
    exp_avg_sq: V,
    step: V,
    learning_rate: V,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> tuple[V, ...]:
    """Weight, exp_avg and exp_avg_sq; the scalars of the step are computed in F64.

    Weight, gradient and slots have one shape and one float dtype; `step` is F32[] and counts this step; `learning_rate`
    is F64[].
    """
    others, form = (gradient, exp_avg, exp_avg_sq), (weight.dtype, tuple(weight.shape))
    if weight.dtype not in FLOATS or any((each.dtype, tuple(each.shape)) != form for each in others):
        raise MalformedError("weight, gradient and slots differ in shape or dtype, or are no floats")
    if [(each.dtype, tuple(each.shape)) for each in (step, learning_rate)] != [("F32", ()), ("F64", ())]:
        raise MalformedError("step is no F32[], or learning_rate no F64[]")
    w, g, mean, square = (a.wide(each) for each in (weight, gradient, exp_avg, exp_avg_sq))
    g = a.neg(g) if maximize else g
    number = _Numbers(a, w.dtype)
    if weight_decay and decoupled:
        w = a.mul(w, a.cast(a.sub(1, a.mul(learning_rate, weight_decay)), w.dtype))
    elif weight_decay:
        g = a.add(g, a.mul(w, number(weight_decay)))
    mean = _moved(a, mean, g, 1 - beta1, number)
    square = a.add(a.mul(square, number(beta2)), a.mul(a.mul(number(1 - beta2), g), g))
    count = a.cast(step, "F64")
    correction = a.cast(a.sqrt(a.sub(1, a.pow(beta2, count))), w.dtype)
    size = a.cast(a.neg(a.div(learning_rate, a.sub(1, a.pow(beta1, count)))), w.dtype)
    denominator = a.add(a.div(a.sqrt(square), correction), number(eps))
    moved = a.add(w, a.div(a.mul(size, mean), denominator))
    return tuple(a.cast(each, weight.dtype) for each in (moved, mean, square))


class _Numbers:
    """Numbers of Python, rounded once to the dtype in which the kernel computes."""

    def __init__(self, a: Algebra[Any], dtype: str) -> None:
        self._algebra, self._dtype = a, dtype

    def __call__(self, number: float) -> Any:
        return self._algebra.full((), number, self._dtype)


def _moved(a: Algebra[V], mean: V, gradient: V, weight: float, number: _Numbers) -> V:
    """From the nearer of both ends, as `aten.lerp.Scalar`."""
    difference = a.sub(gradient, mean)
    if abs(weight) < 0.5:
        return a.add(mean, a.mul(number(weight), difference))
    return a.add(gradient, a.mul(number(weight - 1), difference))

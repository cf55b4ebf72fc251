"""The results of an operator, each with a bound on how far an honest evaluation may be from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.operators.arrays import NUMPY, ArrayLibrary, exact_float64
from tallystick.operators.balls.ball import Ball
from tallystick.operators.balls.balls import Balls
from tallystick.operators.definition import Exactness, Operator
from tallystick.operators.library import ANY, FUSED_EXPONENTIAL, MathLibrary as Figures
from tallystick.operators.precision import FORMATS, PLAIN, SHORT, Precision
from tallystick.operators.rounding import DETERMINISTIC, Model
from tallystick.operators.values import Value
from tallystick.tensors.tensor import Tensor

PLAIN_SUMS: Final = frozenset({"aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim"})
"""Operators whose kernels are known to sum in cascades, as `Variance.plain` assumes."""
Argument = Any
"""A tensor, a tuple of tensors and `None`s, an attribute, or `None`."""


@dataclass(frozen=True)
class ResultBound:
    """One result: `value` in float64 (integers and booleans in their own dtype), and a `radius` of equal shape.

    An infinite radius means no bound. An infinity or a NaN with radius 0 must be matched in class.
    """

    dtype: str
    value: npt.NDArray[Any]
    radius: npt.NDArray[np.float64]

    def excess(self, claimed: Tensor) -> npt.NDArray[np.float64]:
        """|claimed − value| ÷ radius: at most 1 for an honest result, infinite for a wrong infinity or NaN.

        Raises `MalformedError` for a tensor of another dtype or shape.
        """
        if claimed.dtype != self.dtype or claimed.shape != self.value.shape:
            raise MalformedError(f"{claimed.dtype}{list(claimed.shape)} beside {self.dtype}{list(self.value.shape)}")
        array = claimed.array()
        numbers = exact_float64(array, claimed.dtype) if claimed.dtype in FORMATS else array
        return excess(numbers, self.value, self.radius)


def bound(
    operator: Operator,
    arguments: Mapping[str, Argument],
    precision: Precision = PLAIN,
    model: Model = DETERMINISTIC,
    figures: Figures = ANY,
    library: ArrayLibrary = NUMPY,
    reference: str = "F64",
) -> tuple[ResultBound | None, ...]:
    """The results of `operator` on tensors, each with its bound; two honest runs differ by at most the sum of bounds.

    `arguments` gives every parameter its tensor, tuple of tensors or attribute. `reference` is the format in which
    value and radius are computed, F64 or F32; F32 is not for F64 tensors. Judges use F64 on NumPy. Raises
    `MalformedError` if the arguments do not fit together.
    """
    tensors = [x.dtype for x in arguments.values() if isinstance(x, Tensor)]
    balls = algebra_of(operator, tensors, precision, model, figures, library, reference)
    with library.quiet():
        loaded = {name: _loaded(balls, argument) for name, argument in arguments.items()}
        return tuple(None if ball is None else _bounded(balls, ball) for ball in read(operator, balls, loaded))


def algebra_of(
    operator: Operator,
    dtypes: Iterable[str],
    precision: Precision = PLAIN,
    model: Model = DETERMINISTIC,
    figures: Figures = ANY,
    library: ArrayLibrary = NUMPY,
    reference: str = "F64",
) -> Balls:
    """The algebra with the freedom of a fused kernel: it may regroup, rescale and round in between.

    `dtypes` are those of the operands.
    """
    short = next((dtype for dtype in dtypes if dtype in SHORT), None)
    inner, step = figures.within(operator.name, short is not None), None if precision.widens else short
    is_composite, plain = operator.exactness is Exactness.COMPOSITE, operator.name in PLAIN_SUMS
    return Balls(library, precision, model, inner, rescalings(operator), is_composite, step, plain, reference)


def read(operator: Operator, balls: Balls, arguments: Mapping[str, Any]) -> tuple[Ball | None, ...]:
    """The results as balls, with an infinite radius where nothing is required of an honest kernel.

    In a composite, infinities are unknown: regrouped terms may give NaN or a number.
    """
    results = operator.read(balls, arguments)
    if _spreads(operator, arguments):
        return tuple(None if ball is None else balls.released(ball) for ball in results)
    if operator.exactness is Exactness.COMPOSITE:
        return tuple(None if ball is None else balls.finite(ball) for ball in results)
    return results


def excess(claimed: npt.NDArray[Any], value: npt.NDArray[Any], radius: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """|claimed − value| ÷ radius by element: 0 if equal or without bound, infinite if the class differs."""
    with np.errstate(all="ignore"):
        distance = np.abs(claimed.astype(np.float64) - value.astype(np.float64))
        equal = (claimed == value) | (np.isnan(claimed) & np.isnan(value))
        ratio = np.where(equal | (radius == np.inf), 0.0, distance / radius)
    return np.asarray(np.where(np.isnan(ratio), np.inf, ratio), np.float64)


def rescalings(operator: Operator) -> int:
    """Roundings per tile of a running sum: fused attention rescales it by a new exponential of at most 8 ulp."""
    return 1 + FUSED_EXPONENTIAL["F32"] if "attention" in operator.name else 0


def _spreads(operator: Operator, loaded: Mapping[str, Any]) -> bool:
    """Whether a NaN or an infinity may reach other elements: kernels pad, or transform whole tiles."""
    if not any(word in operator.name for word in ("conv", "attention")):
        return False
    return any(_is_wild(name, ball) for name, ball in loaded.items() if isinstance(ball, Ball))


def _is_wild(name: str, ball: Ball) -> bool:
    """Whether an operand holds infinities or NaN; −∞ in a mask is expected and does not count."""
    array = ball.array
    if ball.dtype not in FORMATS:
        return False
    return bool(((array != array) | (array == np.inf) | ((array == -np.inf) & ("mask" not in name))).any())


def _loaded(balls: Balls, argument: Argument) -> Any:
    if isinstance(argument, Tensor):
        return balls.load(argument)
    if isinstance(argument, tuple) and any(isinstance(item, Tensor) for item in argument):
        return tuple(_loaded(balls, item) for item in argument)
    return argument


def _bounded(balls: Balls, ball: Ball) -> ResultBound:
    value, radius = balls.library.storage(ball.array), np.asarray(0.0)
    if ball.radius is not None:
        radius = balls.library.storage(balls.values.broadcast(Value(ball.radius, "F64"), ball.shape).array)
    if ball.dtype in FORMATS and value.dtype != np.float64:
        value, radius = value.astype(np.float64), radius.astype(np.float64)
    return ResultBound(ball.dtype, value, np.broadcast_to(radius, value.shape))

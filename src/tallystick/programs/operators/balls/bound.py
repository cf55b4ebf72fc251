"""All primitives on balls as one algebra, and the results of an operator with their bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.programs.operators.algebra import Number
from tallystick.programs.operators.arrays import NUMPY, ArrayLibrary, exact_float64
from tallystick.programs.operators.balls.accumulation import Accumulation
from tallystick.programs.operators.balls.ball import Ball, Frame
from tallystick.programs.operators.balls.elementwise import Elementwise
from tallystick.programs.operators.definition import Exactness, Operator
from tallystick.programs.operators.precision import (
    ANY,
    FORMATS,
    FUSED_EXPONENTIAL,
    PLAIN,
    SHORT,
    MathLibrary as Figures,
    Precision,
)
from tallystick.programs.operators.rounding import DETERMINISTIC, Model
from tallystick.programs.operators.values import Value


class _Movement(Frame):
    """See `Algebra`; none of these primitives rounds."""

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> Ball:
        return self.broadcast(self._constant(number, dtype), shape)

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> Ball:
        return Ball(self.values.iota(shape, axis, dtype), least=0.0)

    def _with_radius(self, name: str, x: Ball, *how: Any) -> Ball:
        return self._moved(x, lambda value: getattr(self.values, name)(value, *how))

    reshape: partialmethod[Ball] = partialmethod(_with_radius, "reshape")
    broadcast: partialmethod[Ball] = partialmethod(_with_radius, "broadcast")
    transpose: partialmethod[Ball] = partialmethod(_with_radius, "transpose")
    slice: partialmethod[Ball] = partialmethod(_with_radius, "slice")
    flip: partialmethod[Ball] = partialmethod(_with_radius, "flip")
    windows: partialmethod[Ball] = partialmethod(_with_radius, "windows")

    def pad(self, x: Ball, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Ball:
        constant = self._constant(number, x.dtype)
        around = 0.0 if constant.radius is None else float(self.xp.max(constant.radius))
        if around and x.radius is None:
            x = replace(x, radius=self._full(0.0, x))
        centre = self.values.pad(x.centre, number, low, high, interior)
        radius = None if x.radius is None else self._over(x.radius, self.values.pad, around, low, high, interior)
        return Ball(centre, radius, min(x.least, constant.least))

    def concat(self, xs: Sequence[Ball], axis: int) -> Ball:
        centre = self.values.concat([x.centre for x in xs], axis)
        least = min(x.least for x in xs)
        if all(x.radius is None for x in xs):
            return Ball(centre, least=least)
        radii = [Value(self._full(x.width, x), "F64") for x in xs]
        return Ball(centre, self.values.concat(radii, axis).array, least)

    def take(self, x: Ball, indices: Sequence[Ball], axis: int) -> Ball:
        """An element is unknown if its index is unknown."""
        places = [index.centre for index in indices]
        result = self._moved(x, lambda value: self.values.take(value, places, axis))
        unsure = [index.radius for index in indices if index.radius is not None]
        if not unsure:
            return result
        shape = np.broadcast_shapes(*(index.shape for index in indices))
        doubt = self.xp.broadcast_to(sum(unsure[1:], unsure[0]), shape)
        doubt = self.xp.reshape(doubt, (*shape, *[1] * (len(x.shape) - axis - len(indices))))
        return replace(result, radius=self._full(result.width, result) + doubt)

    def take_along(self, x: Ball, indices: Ball, axis: int) -> Ball:
        result = self._moved(x, lambda value: self.values.take_along(value, indices.centre, axis))
        if indices.radius is None:
            return result
        return replace(result, radius=self._full(result.width, result) + indices.radius)


class Balls(Elementwise, Accumulation, _Movement):
    """The algebra of balls over one array library, for devices of one precision and one table of library figures."""


PLAIN_SUMS: Final = frozenset({"aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim"})
"""Operators whose kernels are known to sum in cascades: `RoundedSums.plain`."""
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

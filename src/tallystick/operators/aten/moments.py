"""Means, variances and the formulas that layer, group and batch normalization share.

Variances are taken in two passes. Kernels write (x − mean)·rstd·weight + bias also as x·α + β (Ioffe & Szegedy 2015,
arXiv:1502.03167, Algorithm 2): a sum of three terms in another order, which `summand` allows for. A kernel that takes
the variance as E[x²] − E[x]² is another formula; only group normalization has it, in PyTorch's channels-last layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Generic

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, Axes, Typed, V
from tallystick.operators.aten.contraction import summand
from tallystick.operators.shapes import FLOATS

Sides = tuple[int, ...]

TERMS: Final = 4


@dataclass(frozen=True)
class Moments(Generic[V]):
    """Mean, sum of squared deviations, and 1 / √(variance + ε), with sides of 1 where they were taken."""

    mean: V
    squares: V
    rstd: V


def moments_of(a: Algebra[V], x: V, axes: Axes, eps: float, one_pass: bool = False) -> Moments[V]:
    """The moments over `axes`, the variance in two passes; with `one_pass` also as far off as E[x²] − E[x]² may be."""
    count = math.prod(x.shape[axis] for axis in axes)
    mean = a.div(a.sum(x, axes, keep=True), count)
    away = a.sub(x, mean)
    squares = a.sum(a.mul(away, away), axes, keep=True)
    variance = a.div(squares, count)
    if one_pass:
        mean_square = a.div(a.sum(a.mul(x, x), axes, keep=True), count)
        for each in (mean_square, a.mul(mean, mean)):
            variance = a.add(variance, nothing(a, each))
    return Moments(mean, squares, a.rsqrt(a.add(variance, eps)))


def nothing(a: Algebra[V], x: V) -> V:
    """0 with at least the error of `x`, as a term that cancels has it; 0 alone where `x` overflows."""
    return a.where(a.is_finite(x), a.sub(x, x), 0.0)


def normalize(a: Algebra[V], x: V, mean: V, rstd: V, gain: V | None, shift: V | None) -> V:
    """(x − mean)·rstd·gain + shift, with the three terms added in any order."""
    result = a.mul(centred(a, x, mean), rstd)
    if gain is not None:
        result = a.mul(result, gain)
    return result if shift is None else a.add(result, summand(a, shift, TERMS))


def centred(a: Algebra[V], x: V, mean: V) -> V:
    """The distance x − mean, as two of three terms that are added in any order."""
    return a.sub(summand(a, x, TERMS), summand(a, mean, TERMS))


def gradient_by_input(a: Algebra[V], g: V, x: V, mean: V, rstd: V, axes: Axes) -> V:
    """rstd·g − rstd·Σg/n − (x − mean)·rstd³·(Σg·x − mean·Σg)/n; Σg·x before the mean is taken off, as kernels do."""
    count = math.prod(x.shape[axis] for axis in axes)
    total, dotted = a.sum(g, axes, keep=True), a.sum(a.mul(g, x), axes, keep=True)
    slope = a.div(a.mul(a.sub(dotted, a.mul(mean, total)), a.mul(a.mul(rstd, rstd), rstd)), count)
    level = a.div(a.mul(total, rstd), count)
    direct = a.sub(summand(a, a.mul(g, rstd), TERMS), summand(a, level, TERMS))
    return a.sub(direct, a.mul(centred(a, x, mean), slope))


def stored(a: Algebra[V], statistic: V, input: Typed) -> V:
    """A statistic as wide as it is, with the rounding of kernels that store it in the type of the input."""
    return a.cast(a.cast(statistic, input.dtype), statistic.dtype)


def widened(a: Algebra[V], x: V | None) -> V | None:
    """The operand in the dtype in which kernels compute; `None` if there is none."""
    return None if x is None else a.wide(x)


def present(x: V | None, name: str) -> V:
    """Raise `MalformedError` where an operand is missing that the call needs."""
    if x is None:
        raise MalformedError(f"the {name} is missing")
    return x


def check_shape(x: Typed, shape: Sides) -> None:
    """Raise `MalformedError` unless `x` holds floats of this shape."""
    if x.shape != shape:
        raise MalformedError(f"shape {list(x.shape)} where {list(shape)} is needed")
    check_floats(x)


def check_floats(x: Typed) -> None:
    """Raise `MalformedError` unless `x` holds floats."""
    if x.dtype not in FLOATS:
        raise MalformedError(f"{x.dtype} where floats are needed")

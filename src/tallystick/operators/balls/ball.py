"""A ball: a value that is known to within a radius."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from tallystick.operators.algebra import Number
from tallystick.operators.arrays import Array
from tallystick.operators.values import Value

INFLATION: Final = 1 + 2.0**-30
"""The factor by which radii grow to cover their own float64 rounding."""
INFLATIONS: Final = {"F64": INFLATION, "F32": 1 + 2.0**-14}
"""The same for each format of the reference. In F32 a formula has at most 12 roundings, and an exponential of an
argument up to 88 another 3 · 88: together less than 2⁻¹⁵."""


@dataclass(frozen=True, eq=False)
class Ball:
    """All values within `radius` of `centre` that are at least `least`; `radius` is `None` if all are exact.

    Integers and booleans are exact with radius 0, and unknown with an infinite radius.
    """

    centre: Value
    radius: Array | None = None
    least: float = -math.inf

    @property
    def dtype(self) -> str:
        """The nominal dtype."""
        return self.centre.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides."""
        return self.centre.shape

    @property
    def array(self) -> Array:
        """The centre's elements; floats in float64."""
        return self.centre.array

    @cached_property
    def size(self) -> Array:
        """The magnitude of the centre; several primitives ask for it, and a weight is large."""
        return abs(self.array)

    @property
    def width(self) -> Array | float:
        """The radius, or 0."""
        return 0.0 if self.radius is None else self.radius


Operand: TypeAlias = Ball | Number
Move: TypeAlias = Callable[[Value], Value]

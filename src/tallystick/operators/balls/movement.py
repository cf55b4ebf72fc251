"""Values made from nothing, and moved values: radii move together with the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tallystick.operators.algebra import Axes, Number
from tallystick.operators.balls.ball import Ball
from tallystick.operators.balls.frame import Frame
from tallystick.operators.values import Value


class Movement(Frame):
    """See `Algebra`; none of these primitives rounds."""

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> Ball:
        """See `Algebra.full`."""
        return self.broadcast(self._constant(number, dtype), shape)

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> Ball:
        """See `Algebra.iota`."""
        return Ball(self.values.iota(shape, axis, dtype), least=0.0)

    def reshape(self, x: Ball, shape: Sequence[int]) -> Ball:
        """See `Algebra.reshape`."""
        return self._moved(x, lambda value: self.values.reshape(value, shape))

    def broadcast(self, x: Ball, shape: Sequence[int]) -> Ball:
        """See `Algebra.broadcast`."""
        return self._moved(x, lambda value: self.values.broadcast(value, shape))

    def transpose(self, x: Ball, axes: Sequence[int]) -> Ball:
        """See `Algebra.transpose`."""
        return self._moved(x, lambda value: self.values.transpose(value, axes))

    def slice(self, x: Ball, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Ball:
        """See `Algebra.slice`."""
        return self._moved(x, lambda value: self.values.slice(value, starts, stops, steps))

    def pad(self, x: Ball, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Ball:
        """See `Algebra.pad`."""
        constant = self._constant(number, x.dtype)
        around = 0.0 if constant.radius is None else float(self.xp.max(constant.radius))
        if around and x.radius is None:
            x = replace(x, radius=self._full(0.0, x))
        centre = self.values.pad(x.centre, number, low, high, interior)
        radius = None if x.radius is None else self._over(x.radius, self.values.pad, around, low, high, interior)
        return Ball(centre, radius, min(x.least, constant.least))

    def concat(self, xs: Sequence[Ball], axis: int) -> Ball:
        """See `Algebra.concat`."""
        centre = self.values.concat([x.centre for x in xs], axis)
        least = min(x.least for x in xs)
        if all(x.radius is None for x in xs):
            return Ball(centre, least=least)
        radii = [Value(self._full(x.width, x), "F64") for x in xs]
        return Ball(centre, self.values.concat(radii, axis).array, least)

    def flip(self, x: Ball, axes: Axes) -> Ball:
        """See `Algebra.flip`."""
        return self._moved(x, lambda value: self.values.flip(value, axes))

    def take(self, x: Ball, indices: Sequence[Ball], axis: int) -> Ball:
        """See `Algebra.take`; an element is unknown if its index is unknown."""
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
        """See `Algebra.take_along`."""
        result = self._moved(x, lambda value: self.values.take_along(value, indices.centre, axis))
        if indices.radius is None:
            return result
        return replace(result, radius=self._full(result.width, result) + indices.radius)

    def windows(
        self, x: Ball, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Ball:
        """See `Algebra.windows`."""
        return self._moved(x, lambda value: self.values.windows(value, axes, sizes, strides, dilations))

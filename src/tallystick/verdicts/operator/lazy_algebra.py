"""Lazy evaluation of definitions: computes only the requested elements of a result, by their places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partialmethod
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.operators.algebra import Axes, ByElement, Comparison, Number
from tallystick.programs.operators.balls.ball import Ball
from tallystick.programs.operators.balls.bound import Balls
from tallystick.programs.operators.types import Types

# Converts between flat places of elements in row-major order and indices along axes.

Places: TypeAlias = npt.NDArray[np.int64]
"""Flat places of elements, in row-major order."""


def coordinates(places: Places, shape: tuple[int, ...]) -> list[Places]:
    """The index along every axis of elements at flat `places`."""
    indices, rest = [], places
    for side in reversed(shape):
        rest, index = np.divmod(rest, max(side, 1))
        indices.append(index)
    return indices[::-1]


def flat_places(indices: Sequence[Places], shape: tuple[int, ...], count: int) -> Places:
    """The flat places of `count` elements with these indices along every axis."""
    flat = np.zeros(count, np.int64)
    for index, side in zip(indices, shape, strict=True):
        flat = flat * side + index
    return flat


def broadcast_places(places: Places, shape: tuple[int, ...], source: tuple[int, ...]) -> Places:
    """For elements of a value of `shape`, their places in the value of shape `source` that is broadcast to it."""
    if shape == source:
        return places
    indices = coordinates(places, shape)[len(shape) - len(source) :]
    return flat_places([i * (side != 1) for i, side in zip(indices, source, strict=True)], source, len(places))


def reduced_places(places: Places, shape: tuple[int, ...], axes: Axes) -> Places:
    """For elements of a reduction of `shape` along `axes`, the places of their terms, I64[elements, terms]."""
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    return lines_along(shape, kept, coordinates(places, tuple(shape[i] for i in kept)), axes, len(places))


def row_and_column(places: Places, shape: tuple[int, ...], axis: int) -> tuple[Places, Places]:
    """For each element, the number of its row along `axis` and its place in that row."""
    indices, kept = coordinates(places, shape), shape[:axis] + shape[axis + 1 :]
    return flat_places(indices[:axis] + indices[axis + 1 :], kept, len(places)), indices[axis]


def lines_along(shape: tuple[int, ...], fixed: Axes, at: Sequence[Places], along: Axes, count: int) -> Places:
    """The places of all elements along some axes, one row for each of `count` index sets of the `fixed` axes."""
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    inner = np.zeros(1, np.int64)
    for axis in along:
        inner = (inner[:, None] + np.arange(shape[axis]) * steps[axis]).reshape(-1)
    start = np.zeros(count, np.int64)
    for axis, index in zip(fixed, at, strict=True):
        start = start + index * steps[axis]
    return start[:, None] + inner


# Lazy evaluation of definitions: computes only the requested elements of a result.
#
# A `LazyTensor` has a spec and a rule that computes the elements at given flat places from the operand elements they
# depend on. So a few elements of a matrix product need a few rows and columns, and a few elements of a softmax need
# their rows. Sorts and scatters are computed as a whole, because each of their elements may depend on all others.

Rule: TypeAlias = Callable[[Places], Ball]
REMEMBERED: Final = 4


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A value whose elements can be computed singly; `rule` maps flat places I64[n] to a ball of [n]."""

    spec: TensorSpec
    rule: Rule
    _known: list[tuple[Places, Ball]] = field(default_factory=list)

    @property
    def dtype(self) -> str:
        """The nominal dtype."""
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides."""
        return self.spec.shape

    def at(self, places: Places) -> Ball:
        """The elements at flat `places`, I64[n]; the last result is cached."""
        for known, cached in self._known:
            if known is places or np.array_equal(known, places):
                return cached
        cached = self.rule(places)
        self._known[:] = [(places, cached), *self._known[: REMEMBERED - 1]]
        return cached


Operand: TypeAlias = LazyTensor | Number


class LazyAlgebra(ByElement[LazyTensor]):
    """The algebra of lazy tensors over an algebra of balls; `Types` derives the specs and refuses unfit operands."""

    def __init__(self, balls: Balls) -> None:
        self.balls, self.types = balls, Types()

    def load(self, ball: Ball) -> LazyTensor:
        """A lazy tensor over a ball that is already computed."""
        flat = self.balls.reshape(ball, (math.prod(ball.shape),))
        return LazyTensor(TensorSpec(ball.dtype, ball.shape), lambda places: self._taken(flat, places))

    # ---- values from nothing

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> LazyTensor:
        """See `Algebra.full`."""
        spec = self.types.full(shape, number, dtype)
        return LazyTensor(spec, lambda places: self.balls.full(places.shape, number, dtype))

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> LazyTensor:
        """See `Algebra.iota`."""
        spec = self.types.iota(shape, axis, dtype)
        count = self.load(self.balls.iota((spec.shape[axis],), 0, dtype))
        return LazyTensor(spec, lambda places: count.at(coordinates(places, spec.shape)[axis]))

    # ---- one element at a time

    def cast(self, x: LazyTensor, dtype: str) -> LazyTensor:
        """See `Algebra.cast`."""
        return LazyTensor(self.types.cast(x.spec, dtype), lambda places: self.balls.cast(x.at(places), dtype))

    def wide(self, x: LazyTensor) -> LazyTensor:
        """See `Algebra.wide`."""
        return LazyTensor(self.types.wide(x.spec), lambda places: self.balls.wide(x.at(places)))

    def compare(self, x: LazyTensor, y: Operand, how: Comparison) -> LazyTensor:
        """See `Algebra.compare`."""
        spec = self.types.compare(x.spec, _spec(y), how)

        def rule(places: Places) -> Ball:
            left, right = self._each(places, spec, x, y)
            return self.balls.compare(left, right, how)

        return LazyTensor(spec, rule)

    def where(self, condition: LazyTensor, x: Operand, y: Operand) -> LazyTensor:
        """See `Algebra.where`."""
        spec = self.types.where(condition.spec, _spec(x), _spec(y))
        return LazyTensor(spec, lambda places: self.balls.where(*self._each(places, spec, condition, x, y)))

    def _by_element(self, name: str, x: Operand, y: Operand | None = None) -> LazyTensor:
        read, given = getattr(self.balls, name), (x,) if y is None else (x, y)
        spec: TensorSpec = getattr(self.types, name)(*map(_spec, given))
        if name == "div" and isinstance(y, LazyTensor) and (y.shape != spec.shape or not y.shape):
            return LazyTensor(spec, lambda places: self._divided(*self._each(places, spec, x, y)))
        return LazyTensor(spec, lambda places: read(*self._each(places, spec, *given)))

    def _divided(self, x: Any, y: Ball) -> Ball:
        """Division that still treats a divisor used by many elements as one: see `Balls.div`."""
        ahead = self.balls.reshape(x, (1, *x.shape)) if isinstance(x, Ball) else self.balls.full((1, 1), x, y.dtype)
        return self.balls.reshape(self.balls.div(ahead, y), y.shape)

    def _each(self, places: Places, spec: TensorSpec, *operands: Operand) -> list[Any]:
        """The operands' elements for elements of a broadcast result; an operand that occurs twice gives one ball."""
        balls: dict[int, Ball] = {}
        for operand in operands:
            if isinstance(operand, LazyTensor) and id(operand) not in balls:
                balls[id(operand)] = operand.at(broadcast_places(places, spec.shape, operand.shape))
        return [balls[id(operand)] if isinstance(operand, LazyTensor) else operand for operand in operands]

    # ---- many elements to one

    def sum(self, x: LazyTensor, axes: Axes, keep: bool = False, short: int = 0) -> LazyTensor:
        """See `Algebra.sum`."""
        spec = self.types.sum(x.spec, axes, keep)
        return self._reduced(spec, x, axes, lambda rows: self.balls.sum(rows, (1,), short=short))

    def _along(self, name: str, x: LazyTensor, axes: Axes, keep: bool = False) -> LazyTensor:
        reduce = getattr(self.balls, name)
        return self._reduced(getattr(self.types, name)(x.spec, axes, keep), x, axes, lambda rows: reduce(rows, (1,)))

    prod = partialmethod(_along, "prod")
    max = partialmethod(_along, "max")
    min = partialmethod(_along, "min")

    def argmax(self, x: LazyTensor, axis: int, keep: bool = False) -> LazyTensor:
        """See `Algebra.argmax`."""
        spec = self.types.argmax(x.spec, axis, keep)
        return self._reduced(spec, x, (axis,), lambda rows: self.balls.argmax(rows, 1))

    def cumsum(self, x: LazyTensor, axis: int) -> LazyTensor:
        """See `Algebra.cumsum`."""
        spec = self.types.cumsum(x.spec, axis)

        def rule(places: Places) -> Ball:
            row, column = row_and_column(places, x.shape, axis)
            some, which = np.unique(row, return_inverse=True)
            rows = self._grid(x, reduced_places(some, x.shape, (axis,)))
            flat = self.balls.reshape(self.balls.cumsum(rows, 1), (len(some) * x.shape[axis],))
            return self._taken(flat, which * x.shape[axis] + column)

        return LazyTensor(spec, rule)

    def mersenne(self, state: LazyTensor, move: LazyTensor, count: int) -> tuple[LazyTensor, LazyTensor]:
        """See `Algebra.mersenne`; as a whole."""
        specs = self.types.mersenne(state.spec, move.spec, count)
        return self._together(specs, lambda: self.balls.mersenne(self._whole(state), self._whole(move), count))

    def sort(self, x: LazyTensor, axis: int, descending: bool) -> tuple[LazyTensor, LazyTensor]:
        """See `Algebra.sort`; as a whole."""
        specs = self.types.sort(x.spec, axis, descending)
        return self._together(specs, lambda: self.balls.sort(self._whole(x), axis, descending))

    def dot(
        self,
        x: LazyTensor,
        y: LazyTensor,
        contract: tuple[Axes, Axes],
        batch: tuple[Axes, Axes] = ((), ()),
        short: int = 0,
    ) -> LazyTensor:
        """See `Algebra.dot`."""
        spec = self.types.dot(x.spec, y.spec, contract, batch)
        free = [
            [i for i in range(len(operand.shape)) if i not in (*contract[side], *batch[side])]
            for side, operand in enumerate((x, y))
        ]
        split = len(batch[0]), len(batch[0]) + len(free[0])

        def rule(places: Places) -> Ball:
            some, which = np.unique(places, return_inverse=True)
            front = coordinates(some, spec.shape)
            kept = front[: split[0]], front[split[0] : split[1]], front[split[1] :]
            rows = lines_along(x.shape, (*batch[0], *free[0]), (*kept[0], *kept[1]), contract[0], len(some))
            columns = lines_along(y.shape, (*batch[1], *free[1]), (*kept[0], *kept[2]), contract[1], len(some))
            found = self.balls.dot(self._grid(x, rows), self._grid(y, columns), ((1,), (1,)), ((0,), (0,)), short)
            return self._taken(found, which)

        return LazyTensor(spec, rule)

    def _reduced(self, spec: TensorSpec, x: LazyTensor, axes: Axes, reduce: Callable[[Ball], Ball]) -> LazyTensor:
        def rule(places: Places) -> Ball:
            some, which = np.unique(places, return_inverse=True)
            return self._taken(reduce(self._grid(x, reduced_places(some, x.shape, axes))), which)

        return LazyTensor(spec, rule)

    # ---- moving data

    def reshape(self, x: LazyTensor, shape: Sequence[int]) -> LazyTensor:
        """See `Algebra.reshape`."""
        return LazyTensor(self.types.reshape(x.spec, shape), x.at)

    def broadcast(self, x: LazyTensor, shape: Sequence[int]) -> LazyTensor:
        """See `Algebra.broadcast`."""
        spec = self.types.broadcast(x.spec, shape)
        return LazyTensor(spec, lambda places: x.at(broadcast_places(places, spec.shape, x.shape)))

    def transpose(self, x: LazyTensor, axes: Sequence[int]) -> LazyTensor:
        """See `Algebra.transpose`."""
        spec = self.types.transpose(x.spec, axes)
        back = [list(axes).index(i) for i in range(len(axes))]
        return self._moved(x, spec, lambda at: [at[i] for i in back])

    def slice(self, x: LazyTensor, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> LazyTensor:
        """See `Algebra.slice`."""
        spec = self.types.slice(x.spec, starts, stops, steps)
        return self._moved(x, spec, lambda at: [a + i * by for i, a, by in zip(at, starts, steps, strict=True)])

    def flip(self, x: LazyTensor, axes: Axes) -> LazyTensor:
        """See `Algebra.flip`."""
        spec = self.types.flip(x.spec, axes)
        return self._moved(x, spec, lambda at: [x.shape[a] - 1 - i if a in axes else i for a, i in enumerate(at)])

    def windows(
        self, x: LazyTensor, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> LazyTensor:
        """See `Algebra.windows`."""
        spec = self.types.windows(x.spec, axes, sizes, strides, dilations)

        def move(at: list[Places]) -> list[Places]:
            moved = at[: len(x.shape)]
            for axis, stride, dilation, inside in zip(axes, strides, dilations, at[len(x.shape) :], strict=True):
                moved[axis] = moved[axis] * stride + inside * dilation
            return moved

        return self._moved(x, spec, move)

    def pad(
        self, x: LazyTensor, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
    ) -> LazyTensor:
        """See `Algebra.pad`."""
        spec = self.types.pad(x.spec, number, low, high, interior)

        def rule(places: Places) -> Ball:
            inside, at = np.ones(places.shape, bool), coordinates(places, spec.shape)
            for axis, (below, gap) in enumerate(zip(low, interior, strict=True)):
                at[axis], between = np.divmod(at[axis] - below, gap + 1)
                inside &= (between == 0) & (at[axis] >= 0) & (at[axis] < x.shape[axis])
            kept = x.at(flat_places([i[inside] for i in at], x.shape, int(inside.sum())))
            padded = self.balls.pad(kept, number, (0,), (1,), (0,))
            return self._taken(padded, np.where(inside, np.cumsum(inside) - 1, kept.shape[0]))

        return LazyTensor(spec, rule)

    def concat(self, xs: Sequence[LazyTensor], axis: int) -> LazyTensor:
        """See `Algebra.concat`."""
        spec = self.types.concat([x.spec for x in xs], axis)
        ends = np.cumsum([x.shape[axis] for x in xs])

        def rule(places: Places) -> Ball:
            at = coordinates(places, spec.shape)
            source = np.searchsorted(ends, at[axis], side="right")
            order, parts = np.argsort(source, kind="stable"), []
            for number, x in enumerate(xs):
                mine = [i[source == number] for i in at]
                mine[axis] = mine[axis] - (ends[number] - x.shape[axis])
                parts.append(x.at(flat_places(mine, x.shape, int((source == number).sum()))))
            return self._taken(self.balls.concat(parts, 0), np.argsort(order, kind="stable"))

        return LazyTensor(spec, rule)

    def take(self, x: LazyTensor, indices: Sequence[LazyTensor], axis: int) -> LazyTensor:
        """See `Algebra.take`; only the needed indices are checked."""
        spec = self.types.take(x.spec, [index.spec for index in indices], axis)
        chosen = np.broadcast_shapes(*(index.shape for index in indices))

        def rule(places: Places) -> Ball:
            at = coordinates(places, spec.shape)
            middle = flat_places(at[axis : axis + len(chosen)], chosen, len(places))
            read = [index.at(broadcast_places(middle, chosen, index.shape)) for index in indices]
            inner = [_index(ball, x.shape[axis + i]) for i, ball in enumerate(read)]
            return self._read_at(x, [*at[:axis], *inner, *at[axis + len(chosen) :]], read, len(places))

        return LazyTensor(spec, rule)

    def take_along(self, x: LazyTensor, indices: LazyTensor, axis: int) -> LazyTensor:
        """See `Algebra.take_along`."""
        spec = self.types.take_along(x.spec, indices.spec, axis)

        def rule(places: Places) -> Ball:
            at = coordinates(places, spec.shape)
            read = indices.at(broadcast_places(places, spec.shape, indices.shape))
            at[axis] = _index(read, x.shape[axis])
            inside = [np.where(x.shape[a] == 1, 0, i) for a, i in enumerate(at)]
            return self._read_at(x, inside, [read], len(places))

        return LazyTensor(spec, rule)

    def scatter(
        self, x: LazyTensor, indices: Sequence[LazyTensor], axis: int, updates: LazyTensor, add: bool
    ) -> LazyTensor:
        """See `Algebra.scatter`; as a whole."""
        spec = self.types.scatter(x.spec, [index.spec for index in indices], axis, updates.spec, add)

        @cache
        def scattered() -> LazyTensor:
            chosen = [self._whole(index) for index in indices]
            return self.load(self.balls.scatter(self._whole(x), chosen, axis, self._whole(updates), add))

        return LazyTensor(spec, lambda places: scattered().at(places))

    # ---- how

    def _together(
        self, specs: tuple[TensorSpec, TensorSpec], compute: Callable[[], tuple[Ball, Ball]]
    ) -> tuple[LazyTensor, LazyTensor]:
        """Two values that are computed together and as a whole, once an element of either is needed."""
        both = cache(lambda: [self.load(ball) for ball in compute()])
        first, second = specs
        return LazyTensor(first, lambda at: both()[0].at(at)), LazyTensor(second, lambda at: both()[1].at(at))

    def _whole(self, x: LazyTensor) -> Ball:
        return self.balls.reshape(x.at(np.arange(x.spec.size)), x.shape)

    def _grid(self, x: LazyTensor, places: Places) -> Ball:
        return self.balls.reshape(x.at(places.reshape(-1)), places.shape)

    def _taken(self, flat: Ball, places: Places) -> Ball:
        index = self.balls.load(Tensor.of(np.asarray(places, np.int64).reshape(-1)))
        return self.balls.take(flat, (index,), 0)

    def _moved(self, x: LazyTensor, spec: TensorSpec, move: Callable[[list[Places]], list[Places]]) -> LazyTensor:
        return LazyTensor(
            spec, lambda places: x.at(flat_places(move(coordinates(places, spec.shape)), x.shape, len(places)))
        )

    def _read_at(self, x: LazyTensor, at: list[Places], indices: Sequence[Ball], count: int) -> Ball:
        """The elements of `x` at indices; an element is unknown if its index is unknown."""
        ball = x.at(flat_places(at, x.shape, count))
        unsure = [index.radius for index in indices if index.radius is not None]
        return replace(ball, radius=sum(unsure, np.zeros(count) + ball.width)) if unsure else ball


def _index(ball: Ball, side: int) -> Places:
    """Integers as places along a side; raises `MalformedError` for one outside it."""
    index = np.asarray(ball.array).astype(np.int64)
    if ((index < -side) | (index >= side)).any():
        raise MalformedError(f"an index outside {side} elements")
    return np.where(index < 0, index + side, index)


def _spec(x: Any) -> Any:
    return x.spec if isinstance(x, LazyTensor) else x

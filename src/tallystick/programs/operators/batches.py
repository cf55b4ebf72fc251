"""The algebra that follows the examples of a batch through a definition, and refuses it if they mix.

Either a value is the same for every example (`axis` is `None`), or its side along `axis` is `size` × `block`, and the
rows from i·block to (i + 1)·block are what the operator gives for example i alone. `block` is 1 until a reshape merges
the batch axis with the axes after it.

A value that a definition makes from nothing is also the same for every example, but its sides may come from the batch
(`zeros_like(x)`). Such axes are `live`, and stay live when they move. A live axis may meet the batch axis of another
value if all its rows are equal (`uniform`), and index it if each element is its own index (`counted`). It may not be
summed, cut or reordered, because the result would depend on the number of examples.

The rules are sound but not complete: if no rule shows that examples stay apart, `Mixes` is raised.
"""
# ruff: noqa: D102  (`Algebra` says what each primitive means)

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any, TypeAlias

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.operators.algebra import Axes, ByElement, Comparison, Number, X
from tallystick.programs.operators.types import Types


class Mixes(MalformedError):  # noqa: N818
    """A result for one example cannot be shown to depend on this example alone."""


@dataclass(frozen=True)
class Batched:
    """The spec of a value and where its examples are."""

    spec: TensorSpec
    axis: int | None = None
    block: int = 1
    uniform: frozenset[int] = frozenset()
    counted: int | None = None
    live: frozenset[int] = frozenset()

    @property
    def dtype(self) -> str:
        """A safetensors name."""
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides."""
        return self.spec.shape

    def repeats(self, axis: int) -> bool:
        """Whether all rows along `axis` are equal."""
        return axis in self.uniform or self.shape[axis] == 1


Map: TypeAlias = Callable[[int], "int | None"]
"""Maps an axis of an operand to the result's axis; `None` if there is none, or if rows do not correspond."""
Operand: TypeAlias = "Batched | Number"


@dataclass(frozen=True)
class Note:
    """One primitive of a reading, described by everything that must not depend on the batch size.

    Only the sides of `shape` along the axes `free` may depend on it, in proportion.
    """

    what: tuple[str, ...]
    shape: tuple[int, ...] = ()
    free: frozenset[int] = frozenset()

    def agrees(self, alone: Note, size: int) -> bool:
        """Whether `alone` is the same primitive for one of `size` examples."""
        if self.what != alone.what or len(self.shape) != len(alone.shape):
            return False
        pairs = enumerate(zip(self.shape, alone.shape, strict=True))
        return all(whole == one or (i in self.free and whole == one * size) for i, (whole, one) in pairs)


class Batches(ByElement[Batched]):
    """`Algebra[Batched]` for batches of `size` examples; `sides` are the sides that hold a whole batch.

    `notes` lists the primitives called. The result for one example is a part of the batch's result only if the
    definition, read for one example, calls the same primitives.
    """

    def __init__(self, size: int, sides: Iterable[int] = ()) -> None:
        self.size = size
        self.sides = frozenset(sides) | {size}
        self.types = Types()
        self.notes: list[Note] = []

    # ---- values from nothing

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> Batched:
        """Uniform along every axis."""
        spec, live = self.types.full(shape, number, dtype), self._live(shape)
        self._note("full", number, dtype, shape=spec.shape, free=live)
        return Batched(spec, uniform=frozenset(range(len(spec.shape))), live=live)

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> Batched:
        """Counted along `axis`, uniform along the others."""
        spec, live = self.types.iota(shape, axis, dtype), self._live(shape)
        self._note("iota", axis, dtype, shape=spec.shape, free=live)
        return Batched(spec, uniform=frozenset(range(len(spec.shape))) - {axis}, counted=axis, live=live)

    # ---- one element at a time

    def cast(self, x: Batched, dtype: str) -> Batched:
        """Element by element; a counted axis stays counted for integers."""
        self._note("cast", dtype)
        spec = self.types.cast(x.spec, dtype)
        return replace(x, spec=spec, counted=x.counted if dtype in {"I64", "I32"} else None)

    def wide(self, x: Batched) -> Batched:
        return self.cast(x, "F32") if x.dtype in {"F16", "BF16"} else x

    def compare(self, x: Batched, y: Operand, how: Comparison) -> Batched:
        self._note("compare", how, *_numbers(x, y))
        return self._elementwise(self.types.compare(x.spec, _spec(y), how), x, y)

    def where(self, condition: Batched, x: Operand, y: Operand) -> Batched:
        self._note("where", *_numbers(x, y))
        return self._elementwise(self.types.where(condition.spec, _spec(x), _spec(y)), condition, x, y)

    def _by_element(self, name: str, x: Operand, y: Operand | None = None) -> Batched:
        operands = [x] if y is None else [x, y]
        self._note(name, *_numbers(*operands))
        return self._elementwise(getattr(self.types, name)(*map(_spec, operands)), *operands)

    # ---- many elements to one

    def _reduction(self, name: str, x: Batched, axes: Axes, keep: bool = False, short: int = 0) -> Batched:
        self._note(name, axes)
        return self._reduced(getattr(self.types, name)(x.spec, axes, keep), x, axes, keep)

    sum = partialmethod(_reduction, "sum")
    prod = partialmethod(_reduction, "prod")
    max = partialmethod(_reduction, "max")
    min = partialmethod(_reduction, "min")

    def argmax(self, x: Batched, axis: int, keep: bool = False) -> Batched:
        self._note("argmax", axis)
        return self._reduced(self.types.argmax(x.spec, axis, keep), x, (axis,), keep)

    def cumsum(self, x: Batched, axis: int) -> Batched:
        self._note("cumsum", axis)
        return self._result(self.types.cumsum(x.spec, axis), (x, _all_but((axis,))))

    def mersenne(self, state: Batched, move: Batched, count: int) -> tuple[Batched, Batched]:
        if state.axis is not None or move.axis is not None:
            raise Mixes("random words depend on the whole batch")
        self._note("mersenne", count)
        words, after = self.types.mersenne(state.spec, move.spec, count)
        return Batched(words), Batched(after)

    def sort(self, x: Batched, axis: int, descending: bool) -> tuple[Batched, Batched]:
        self._note("sort", axis, descending)
        values, indices = self.types.sort(x.spec, axis, descending)
        return self._result(values, (x, _all_but((axis,)))), self._result(indices, (x, _all_but((axis,))))

    def dot(
        self, x: Batched, y: Batched, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ()), short: int = 0
    ) -> Batched:
        """The batch is a batch axis of both, or a free axis of one."""
        self._note("dot", contract, batch)
        result = self.types.dot(x.spec, y.spec, contract, batch)
        first = len(x.shape) - len(contract[0])
        return self._result(
            result,
            (x, _dotted(x.shape, contract[0], batch[0], len(batch[0]))),
            (y, _dotted(y.shape, contract[1], batch[1], first)),
        )

    # ---- moving data

    def reshape(self, x: Batched, shape: Sequence[int]) -> Batched:
        """The batch axis is kept if the rows of one example stay together, as its row-major stride shows."""
        spec = self.types.reshape(x.spec, shape)
        moved = {axis: self._carried(x, spec.shape, axis, x.shape[axis] // self.size) for axis in x.live}
        apart = f"the examples do not stay apart when {x.spec} becomes {spec}"
        live = frozenset(_there(place, apart)[0] for place in moved.values())
        if x.axis is not None:
            axis, block = _there(self._carried(x, spec.shape, x.axis, x.block), apart)
            self._note("reshape", shape=spec.shape, free=live | {axis})
            return Batched(spec, axis, block, live=live)
        self._note("reshape", shape=spec.shape, free=live)
        same = {axis: _same_axis(x.shape, spec.shape, axis) for axis in range(len(x.shape))}
        uniform = {same[axis] for axis in x.uniform}
        if all(x.repeats(axis) for axis in range(len(x.shape))):
            uniform = set(range(len(spec.shape)))
        counted = None if x.counted is None else same[x.counted]
        return Batched(spec, None, 1, frozenset(axis for axis in uniform if axis is not None), counted, live)

    def broadcast(self, x: Batched, shape: Sequence[int]) -> Batched:
        spec = self.types.broadcast(x.spec, shape)
        new = len(spec.shape) - len(x.shape)
        stretched = {i for i, side in enumerate(spec.shape) if i < new or side != x.shape[i - new]}
        result = self._elementwise(spec, x)
        live = result.live | (self._live(spec.shape) & stretched)
        self._note("broadcast", shape=spec.shape, free=live | {result.axis if result.axis is not None else -1})
        if result.axis is not None:
            return replace(result, live=live - {result.axis})
        counted = None if x.counted is None or x.counted + new in stretched else x.counted + new
        return replace(result, uniform=result.uniform | stretched, live=live, counted=counted)

    def transpose(self, x: Batched, axes: Sequence[int]) -> Batched:
        self._note("transpose", tuple(axes))
        result = self._result(self.types.transpose(x.spec, axes), (x, list(axes).index))
        return result if x.counted is None else replace(result, counted=list(axes).index(x.counted))

    def slice(self, x: Batched, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Batched:
        spec = self.types.slice(x.spec, starts, stops, steps)
        ranges = list(zip(starts, stops, steps, strict=True))
        self._note("slice", *(each for i, each in enumerate(ranges) if i != x.axis and i not in x.live))
        cut = [i for i, (a, b, c) in enumerate(ranges) if (a, b) != (0, x.shape[i]) or (c != 1 and spec.shape[i] > 1)]
        result = self._result(spec, (x, _all_but(cut)))
        return result if x.counted in cut else replace(result, counted=x.counted)

    def pad(
        self, x: Batched, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
    ) -> Batched:
        spec = self.types.pad(x.spec, number, low, high, interior)
        edges = list(zip(low, high, interior, strict=True))
        self._note("pad", number, *(edge for i, edge in enumerate(edges) if i != x.axis))
        return self._result(spec, (x, _all_but([i for i, edge in enumerate(edges) if edge != (0, 0, 0)])))

    def concat(self, xs: Sequence[Batched], axis: int) -> Batched:
        self._note("concat", axis, len(xs))
        spec = self.types.concat([x.spec for x in xs], axis)
        return self._result(spec, *((x, _all_but((axis,))) for x in xs))

    def flip(self, x: Batched, axes: Axes) -> Batched:
        self._note("flip", axes)
        return self._result(self.types.flip(x.spec, axes), (x, _all_but(axes)))

    def take(self, x: Batched, indices: Sequence[Batched], axis: int) -> Batched:
        """Indices may be the same for all examples or batched; or they are the row numbers of the batch axis itself."""
        self._note("take", axis)
        spec = self.types.take(x.spec, [index.spec for index in indices], axis)
        width = len(spec.shape) - len(x.shape) + len(indices)
        own = self._own(x, indices, axis, spec.shape[axis : axis + width])

        def place(i: int) -> int | None:
            if own is not None and i == own[0]:
                return axis + own[1]
            return i if i < axis else None if i < axis + len(indices) else i - len(indices) + width

        marked = _marked(indices, own, axis)
        return self._result(spec, (x, place), *((i, _shift(axis + width - len(i.shape))) for i in marked))

    def take_along(self, x: Batched, indices: Batched, axis: int) -> Batched:
        self._note("take_along", axis)
        spec = self.types.take_along(x.spec, indices.spec, axis)
        return self._result(spec, (x, _all_but((axis,))), (indices, _shift(0)))

    def scatter(self, x: Batched, indices: Sequence[Batched], axis: int, updates: Batched, add: bool) -> Batched:
        """As `take`: indices the same for all examples with batched updates, or the row numbers of the batch axis."""
        spec = self.types.scatter(x.spec, [index.spec for index in indices], axis, updates.spec, add)
        self._note("scatter", axis, add)
        width = len(updates.shape) - len(x.shape) + len(indices)
        own = self._own(x, indices, axis, updates.shape[axis : axis + width])

        def of_x(i: int) -> int | None:
            return i if not axis <= i < axis + len(indices) or (own is not None and i == own[0]) else None

        def of_updates(i: int) -> int | None:
            if own is not None and i == axis + own[1]:
                return own[0]
            return i if i < axis else None if i < axis + width else i - width + len(indices)

        def of_index(index: Batched) -> Map:
            return lambda i: own[0] if own is not None and i + width - len(index.shape) == own[1] else None

        marked = _marked(indices, own, axis)
        return self._result(spec, (x, of_x), (updates, of_updates), *((i, of_index(i)) for i in marked))

    def windows(
        self, x: Batched, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Batched:
        self._note("windows", axes, tuple(sizes), tuple(strides), tuple(dilations))
        return self._result(self.types.windows(x.spec, axes, sizes, strides, dilations), (x, _all_but(axes)))

    # ---- rules

    def _elementwise(self, spec: TensorSpec, *operands: Operand) -> Batched:
        tensors = [each for each in operands if isinstance(each, Batched)]
        return self._result(spec, *((x, _shift(len(spec.shape) - len(x.shape))) for x in tensors))

    def _reduced(self, spec: TensorSpec, x: Batched, axes: Axes, keep: bool) -> Batched:
        def place(axis: int) -> int | None:
            return None if axis in axes else axis if keep else axis - sum(each < axis for each in axes)

        return self._result(spec, (x, place))

    def _result(self, spec: TensorSpec, *operands: tuple[Batched, Map]) -> Batched:
        """A result whose rows along each axis come from the operands' rows along the axes mapped to it."""
        places = {(place(x.axis), x.block) for x, place in operands if x.axis is not None}
        if len(places) > 1:
            raise Mixes("the operands have their examples along different axes")
        live = frozenset(
            _there(place(axis), f"a result {spec} depends on the number of examples")
            for x, place in operands
            for axis in x.live
        )
        for axis, block in places:
            return self._joined(spec, axis, block, live, operands)
        uniform = (i for i in range(len(spec.shape)) if _is_uniform(i, operands))
        return Batched(spec, uniform=frozenset(uniform), live=live)

    def _joined(
        self,
        spec: TensorSpec,
        axis: int | None,
        block: int,
        live: frozenset[int],
        operands: Iterable[tuple[Batched, Map]],
    ) -> Batched:
        if axis is None or spec.shape[axis] != self.size * block:
            raise Mixes(f"the examples do not stay apart in a result {spec}")
        for x, place in operands:
            met = [i for i in range(len(x.shape)) if place(i) == axis]
            if x.axis is None and not all(x.repeats(i) for i in met):
                raise Mixes(f"{x.spec} is no input of every example, and differs along the batch")
        return Batched(spec, axis, block, live=live - {axis})

    def _own(
        self, x: Batched, indices: Sequence[Batched], axis: int, chosen: tuple[int, ...]
    ) -> tuple[int, int] | None:
        """The axis of `x` that is indexed by all its own row numbers, and its axis in the chosen shape."""
        for i, index in enumerate(indices):
            if index.counted is None:
                continue
            place = index.counted + len(chosen) - len(index.shape)
            if index.shape[index.counted] == x.shape[axis + i] == chosen[place] and x.axis in (None, axis + i):
                return axis + i, place
        return None

    def _carried(self, x: Batched, shape: tuple[int, ...], axis: int, block: int) -> tuple[int, int] | None:
        """The axis of `shape` that holds all examples, and the number of rows of each example."""
        outer = math.prod(x.shape[:axis])
        assert x.shape[axis] == self.size * block
        for i, side in enumerate(shape):
            if math.prod(shape[:i]) == outer and side and side % self.size == 0:
                stride = side // self.size * math.prod(shape[i + 1 :])
                if stride == block * math.prod(x.shape[axis + 1 :]):
                    return i, side // self.size
        return None

    def _live(self, shape: Sequence[int]) -> frozenset[int]:
        return frozenset(i for i, side in enumerate(shape) if self.size > 1 and side in self.sides)

    def _note(self, name: str, *exact: object, shape: tuple[int, ...] = (), free: frozenset[int] = frozenset()) -> None:
        self.notes.append(Note((name, *map(repr, exact)), shape, free))


def _spec(operand: Operand) -> Any:
    return operand.spec if isinstance(operand, Batched) else operand


def _numbers(*operands: Operand) -> list[Number]:
    return [each for each in operands if not isinstance(each, Batched)]


def _shift(by: int) -> Map:
    return lambda axis: axis + by


def _all_but(axes: Iterable[int]) -> Map:
    touched = set(axes)
    return lambda axis: None if axis in touched else axis


def _dotted(shape: tuple[int, ...], contract: Axes, batch: Axes, first: int) -> Map:
    """The axes of one operand of a dot in the result: batch axes come first, its free axes from `first` on."""
    free = [i for i in range(len(shape)) if i not in contract and i not in batch]
    places = {axis: i for i, axis in enumerate(batch)} | {axis: first + i for i, axis in enumerate(free)}
    return places.get


def _marked(indices: Sequence[Batched], own: tuple[int, int] | None, axis: int) -> list[Batched]:
    """The indices; the one that holds the row numbers of the batch is marked as uniform, as it fits every example."""
    if own is None:
        return list(indices)
    index = indices[own[0] - axis]
    agreeing = replace(index, uniform=index.uniform | {index.counted})  # type: ignore[arg-type]
    return [agreeing if i == own[0] - axis else each for i, each in enumerate(indices)]


def _there(place: X | None, complaint: str) -> X:
    if place is None:
        raise Mixes(complaint)
    return place


def _same_axis(shape: tuple[int, ...], wanted: tuple[int, ...], axis: int) -> int | None:
    """The axis of `wanted` with the same side and the same row-major stride."""
    outer, side, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    for i, other in enumerate(wanted):
        if (math.prod(wanted[:i]), other, math.prod(wanted[i + 1 :])) == (outer, side, inner):
            return i
    return None


def _is_uniform(axis: int, operands: Iterable[tuple[Batched, Map]]) -> bool:
    met = [x.repeats(i) for x, place in operands for i in range(len(x.shape)) if place(i) == axis]
    return bool(met) and all(met)

"""An algebra that turns the definition for one step of generation into a definition for all steps at once.

Step t feeds token t; the cache holds the rows of the t earlier tokens. Each value v of the step corresponds to one
value V of all steps. Every rule below keeps this relation:

* along an axis of tokens, row t of V is v of step t;
* along an axis of keys, V has the rows of all tokens, and v of step t has the first t + 1 of them;
* with both axes, row t of V begins with v of step t; the value at later keys is `later`: a number, or unknown;
* with neither axis, v is the same in every step.

A definition is read with marks (`axes`) in place of sizes, so that shapes show what each axis counts. If no rule shows
that the relation holds, `Mixed` is raised. Two cases are left to the caller. `ReadsLater` is raised for a reduction
over keys that becomes right once later keys hold its neutral number. A `grown` result is a cache with a row appended.
"""
# ruff: noqa: D102  (`Algebra` says what each primitive means)

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any, Final, TypeAlias

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.operators.algebra import Axes, ByElement, Comparison, Number
from tallystick.programs.operators.types import Types
from tallystick.programs.transforms.known import (
    NEUTRAL,
    REFERENCE,
    Compute,
    Factors,
    Later,
    StepSizes,
    absorbed,
    chosen,
    computed,
    is_neutral,
    product_sum,
    reduced,
    regrouped,
    spoiled,
)

BYTES_MAX: Final = 1 << 62
"""No limit on intermediates: marks are larger than real sizes, and nothing is allocated."""


class Mixed(MalformedError):  # noqa: N818
    """A result for one step cannot be shown to be part of the result for all steps."""


class ReadsLater(Mixed):
    """A reduction over keys that is right only if later keys hold the number `neutral`."""

    def __init__(self, neutral: float) -> None:
        super().__init__("reads the keys of later tokens")
        self.neutral = neutral


@dataclass(frozen=True)
class Stacked:
    """A value of all steps: its spec with marks, what its axes count, and its value at later keys.

    `number` is set if every element is that number, `even` if all keys have the same value. `cache` names the cache
    that this value equals, as it was read or with a new row. `grown` is the new row of a cache that was just joined.
    """

    spec: TensorSpec
    axes: tuple[Factors, ...]
    later: Later = None
    number: float | None = None
    even: bool = False
    cache: str | None = None
    grown: Stacked | None = None

    @property
    def dtype(self) -> str:
        """A safetensors name."""
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sides, with marks."""
        return self.spec.shape

    def counts(self, mark: int) -> bool:
        """Whether an axis counts what `mark` marks."""
        return any(mark in axis for axis in self.axes)

    def axis_of(self, mark: int) -> int:
        """The axis that counts what `mark` marks and nothing else; -1 if there is none."""
        return self.axes.index((mark,)) if (mark,) in self.axes else -1


Operand: TypeAlias = "Stacked | Number"


class Steps(ByElement[Stacked]):
    """`Algebra[Stacked]`; raises `Mixed` if a step reads another in any way but attention."""

    def __init__(self, marks: StepSizes) -> None:
        self.marks = marks
        self.types = Types(bytes_max=BYTES_MAX)

    def stacked(self, spec: TensorSpec) -> Stacked:
        """A value whose sides are marks and plain numbers."""
        return self._made(spec, [self.marks.factors(side) for side in spec.shape])

    # ---- values from nothing

    def full(self, shape: Sequence[int], number: Number, dtype: str) -> Stacked:
        """The same in every step and at every key."""
        return replace(self.stacked(self.types.full(shape, number, dtype)), number=float(number))

    def iota(self, shape: Sequence[int], axis: int, dtype: str) -> Stacked:
        """Keys have the same indices in every step. An axis of tokens is refused: its index in a step is always 0."""
        result = self.stacked(self.types.iota(shape, axis, dtype))
        self._check_apart(result.axes[axis], "counts the tokens of one step", keys=len(result.axes[axis]) > 1)
        return result

    # ---- one element at a time

    def cast(self, x: Stacked, dtype: str) -> Stacked:
        spec = self.types.cast(x.spec, dtype)
        return x if dtype == x.dtype else self._elementwise(spec, [x], lambda known: REFERENCE.cast(known[0], dtype))

    def wide(self, x: Stacked) -> Stacked:
        return self.cast(x, "F32") if x.dtype in {"F16", "BF16"} else x

    def compare(self, x: Stacked, y: Operand, how: Comparison) -> Stacked:
        spec = self.types.compare(x.spec, _spec(y), how)
        return self._elementwise(spec, [x, y], lambda known: REFERENCE.compare(known[0], known[1], how))

    def where(self, condition: Stacked, x: Operand, y: Operand) -> Stacked:
        """Element by element; at later keys the branch that the condition selects decides, whatever the other is."""
        spec = self.types.where(condition.spec, _spec(x), _spec(y))
        result = self._elementwise(spec, [condition, x, y], None)
        return replace_later(result, chosen(later_of(condition), later_of(x), later_of(y)), self.marks)

    def is_finite(self, x: Stacked) -> Stacked:
        """True at later keys: where a score overflows, kernels differ, and a pass says nothing about steps."""
        return replace_later(self._by_element("is_finite", x), 1.0, self.marks)

    def _by_element(self, name: str, x: Operand, y: Operand | None = None) -> Stacked:
        operands = [x] if y is None else [x, y]
        spec = getattr(self.types, name)(*map(_spec, operands))
        result = self._elementwise(spec, operands, lambda known: getattr(REFERENCE, name)(*known))
        later = [later_of(each) for each in operands]
        if None not in later or (spec.dtype == "BOOL" and name != "logical_and"):
            return result
        in_steps = [not isinstance(each, Stacked) or self._is_even(each) or not self._pairs(each) for each in operands]
        return replace_later(result, absorbed(name, later, in_steps), self.marks)

    def _with_even(self, x: Stacked, is_even: bool) -> Stacked:
        even = is_even and x.counts(self.marks.keys)
        return x if x.even == even else replace(x, even=even)

    def _is_even(self, x: Stacked) -> bool:
        return x.even or x.number is not None or not x.counts(self.marks.keys)

    def _pairs(self, x: Stacked) -> bool:
        return x.counts(self.marks.tokens) and x.counts(self.marks.keys)

    # ---- many elements to one

    def argmax(self, x: Stacked, axis: int, keep: bool = False) -> Stacked:
        spec = self.types.argmax(x.spec, axis, keep)
        self._check_apart(x.axes[axis], "chooses among tokens or keys")
        return self._made(spec, _without(x.axes, (axis,), keep))

    def cumsum(self, x: Stacked, axis: int) -> Stacked:
        spec = self.types.cumsum(x.spec, axis)
        self._check_apart(x.axes[axis], "adds up tokens or keys")
        return self._made(spec, x.axes, reduced("sum", later_of(x)))

    def mersenne(self, state: Stacked, move: Stacked, count: int) -> tuple[Stacked, Stacked]:
        """Refused: every token would move the state of the generator."""
        raise Mixed("draws from a generator, which every token moves on")

    def sort(self, x: Stacked, axis: int, descending: bool) -> tuple[Stacked, Stacked]:
        values, indices = self.types.sort(x.spec, axis, descending)
        self._check_apart(x.axes[axis], "sorts tokens or keys")
        return self._moved(values, x.axes, x), self._made(indices, x.axes)

    def dot(
        self, x: Stacked, y: Stacked, contract: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ()), short: int = 0
    ) -> Stacked:
        """A sum over keys is allowed if one factor belongs to a token and is 0 at later keys."""
        spec = self.types.dot(x.spec, y.spec, contract, batch)
        for ours, theirs in zip(contract[0] + batch[0], contract[1] + batch[1], strict=True):
            _check_same(x.axes[ours], y.axes[theirs])
        summed = [x.axes[axis] for axis in contract[0]]
        self._check_apart([mark for axis in summed for mark in axis], "sums over tokens", keys=False)
        if any(self.marks.keys in axis for axis in summed):
            self._check_weights(x, y)
        free = _without(x.axes, contract[0] + batch[0]), _without(y.axes, contract[1] + batch[1])
        result = self._made(spec, [*(x.axes[axis] for axis in batch[0]), *free[0], *free[1]])
        return replace_later(result, product_sum(later_of(x), later_of(y)), self.marks)

    def _check_weights(self, x: Stacked, y: Stacked) -> None:
        weights = [each for each in (x, y) if self._pairs(each)]
        if not weights:
            raise Mixed("sums over keys that no token asks for")
        if all(later_of(each) != 0 for each in weights):
            raise ReadsLater(0.0)

    def _reduced(self, name: str, x: Stacked, axes: Axes, keep: bool = False, short: int = 0) -> Stacked:
        spec = getattr(self.types, name)(x.spec, axes, keep)
        marks = [mark for axis in axes for mark in x.axes[axis]]
        self._check_apart(marks, f"takes the {name} over tokens", keys=False)
        if self.marks.keys in marks and not x.counts(self.marks.tokens):
            raise Mixed(f"takes the {name} over keys that no token asks for")
        if self.marks.keys in marks and not is_neutral(name, later_of(x), x.dtype):
            raise ReadsLater(NEUTRAL[name])
        return self._made(spec, _without(x.axes, axes, keep), reduced(name, later_of(x)))

    sum = partialmethod(_reduced, "sum")
    prod = partialmethod(_reduced, "prod")
    max = partialmethod(_reduced, "max")
    min = partialmethod(_reduced, "min")

    # ---- moving data

    def reshape(self, x: Stacked, shape: Sequence[int]) -> Stacked:
        """An axis of tokens or keys may be merged with others, but not split."""
        spec = self.types.reshape(x.spec, shape)
        if spec.shape == x.shape:
            return x
        axes = regrouped(x.axes, spec.shape, self.marks) if spec.size else [self.marks.factors(i) for i in spec.shape]
        if axes is None:
            raise Mixed("cuts through tokens or keys")
        return self._moved(spec, axes, x)

    def broadcast(self, x: Stacked, shape: Sequence[int]) -> Stacked:
        spec = self.types.broadcast(x.spec, shape)
        if spec.shape == x.shape:
            return x
        new = len(spec.shape) - len(x.shape)
        old: list[Factors] = [*((),) * new, *x.axes]
        axes = [axis or self.marks.factors(side) for axis, side in zip(old, spec.shape, strict=True)]
        return self._with_even(self._moved(spec, axes, x), self._is_even(x))

    def transpose(self, x: Stacked, axes: Sequence[int]) -> Stacked:
        spec = self.types.transpose(x.spec, axes)
        if list(axes) == list(range(len(x.shape))):
            return x
        return self._moved(spec, [x.axes[axis] for axis in axes], x)

    def slice(self, x: Stacked, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Stacked:
        spec = self.types.slice(x.spec, starts, stops, steps)
        if spec.shape == x.shape:
            return x
        return self._changed(spec, x, "cuts a part out of tokens or keys")

    def pad(
        self, x: Stacked, number: Number, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
    ) -> Stacked:
        spec = self.types.pad(x.spec, number, low, high, interior)
        edges = list(zip(low, high, interior, strict=True))
        touched = [mark for i, edge in enumerate(edges) if edge != (0, 0, 0) for mark in x.axes[i]]
        self._check_apart(touched, "pads tokens or keys")
        result = self._changed(spec, x, "pads tokens or keys")
        return result if later_of(x) == number else replace(result, later=spoiled(result.later), number=None)

    def concat(self, xs: Sequence[Stacked], axis: int) -> Stacked:
        """Along a plain axis, or the row of a new token behind a cache."""
        if len(xs) == 1:
            return xs[0]
        if any(x.counts(self.marks.past) for x in xs):
            return self._joined(xs, axis)
        spec = self.types.concat([x.spec for x in xs], axis)
        for x in xs:
            self._check_apart(x.axes[axis], "joins tokens or keys to others")
        axes = _merged([(_without(x.axes, (axis,), True), 0) for x in xs], len(spec.shape))
        axes[axis] = self.marks.factors(spec.shape[axis])
        later, numbers = [later_of(x) for x in xs], {x.number for x in xs}
        result = self._made(spec, axes, later[0] if len(set(later)) == 1 else spoiled(*later))
        return replace(result, number=numbers.pop() if len(numbers) == 1 else None)

    def flip(self, x: Stacked, axes: Axes) -> Stacked:
        spec = self.types.flip(x.spec, axes)
        self._check_apart([mark for axis in axes for mark in x.axes[axis]], "reverses tokens or keys")
        return self._moved(spec, x.axes, x)

    def take(self, x: Stacked, indices: Sequence[Stacked], axis: int) -> Stacked:
        spec = self.types.take(x.spec, [index.spec for index in indices], axis)
        self._check_apart([m for each in x.axes[axis : axis + len(indices)] for m in each], "picks tokens or keys")
        width = max(len(index.shape) for index in indices)
        places = _merged([(index.axes, width - len(index.axes)) for index in indices], width)
        return self._moved(spec, [*x.axes[:axis], *places, *x.axes[axis + len(indices) :]], x)

    def take_along(self, x: Stacked, indices: Stacked, axis: int) -> Stacked:
        spec = self.types.take_along(x.spec, indices.spec, axis)
        self._check_apart(x.axes[axis] + indices.axes[axis], "picks tokens or keys")
        axes = _merged([(_without(x.axes, (axis,), True), 0), (indices.axes, 0)], len(spec.shape))
        axes[axis] = indices.axes[axis]
        return self._with_even(self._moved(spec, axes, x), False)

    def scatter(self, x: Stacked, indices: Sequence[Stacked], axis: int, updates: Stacked, add: bool) -> Stacked:
        """Into what has neither tokens nor keys."""
        spec = self.types.scatter(x.spec, [index.spec for index in indices], axis, updates.spec, add)
        for each in (x, updates, *indices):
            self._check_apart([mark for axes in each.axes for mark in axes], "writes tokens or keys into a tensor")
        return self._made(spec, x.axes)

    def windows(
        self, x: Stacked, axes: Axes, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Stacked:
        spec = self.types.windows(x.spec, axes, sizes, strides, dilations)
        self._check_apart([mark for axis in axes for mark in x.axes[axis]], "slides over tokens or keys")
        kept = {i: axis for i, axis in enumerate(x.axes) if i not in axes}
        return self._moved(spec, [kept.get(i, self.marks.factors(side)) for i, side in enumerate(spec.shape)], x)

    # ---- rules

    def grown(self, old: Stacked, new: Stacked, axis: int) -> Stacked:
        """The cache with a row appended, by induction: the cache holds the rows that the earlier steps appended."""
        beside = [_without(x.axes, (axis,)) for x in (old, new)]
        if new.dtype != old.dtype or new.axes[axis] != (self.marks.tokens,) or beside[0] != beside[1]:
            raise Mixed(f"what is put into {old.cache} is no row of the token")
        shape = (*new.shape[:axis], self.marks.keys, *new.shape[axis + 1 :])
        axes = (*new.axes[:axis], (self.marks.keys,), *new.axes[axis + 1 :])
        return Stacked(TensorSpec(new.dtype, shape), axes, cache=old.cache, grown=new)

    def _joined(self, xs: Sequence[Stacked], axis: int) -> Stacked:
        if len(xs) != 2 or xs[0].cache is None or xs[0].axes[axis] != (self.marks.past,):
            raise Mixed("joins a cache to something else than one new row behind it")
        return self.grown(xs[0], xs[1], axis)

    def _elementwise(self, spec: TensorSpec, operands: Sequence[Operand], compute: Compute | None) -> Stacked:
        tensors = [each for each in operands if isinstance(each, Stacked)]
        axes = _merged([(x.axes, len(spec.shape) - len(x.shape)) for x in tensors], len(spec.shape))
        result = self._with_even(self._made(spec, axes), all(self._is_even(x) for x in tensors))
        if compute is None or any(later_of(each) is None for each in operands):
            return result
        number = computed([(x.dtype if isinstance(x, Stacked) else "", later_of(x)) for x in operands], compute)
        is_uniform = all(each.number is not None for each in tensors)
        return replace(result, number=number) if is_uniform else replace_later(result, number, self.marks)

    def _changed(self, spec: TensorSpec, x: Stacked, what: str) -> Stacked:
        """`x` with other sides along plain axes."""
        axes = []
        for i, side in enumerate(spec.shape):
            if side != x.shape[i]:
                self._check_apart(x.axes[i], what)
                if self.marks.batch in x.axes[i]:
                    raise Mixed("takes sequences apart")
            axes.append(x.axes[i] if side == x.shape[i] else self.marks.factors(side))
        return self._moved(spec, axes, x)

    def _moved(self, spec: TensorSpec, axes: Iterable[Factors], x: Stacked) -> Stacked:
        """Elements of `x` in other places; elements at later keys stay at later keys."""
        return replace(self._made(spec, axes, x.later), number=x.number, even=x.even)

    def _made(self, spec: TensorSpec, axes: Iterable[Factors], later: Later = None) -> Stacked:
        counted = tuple(tuple(axis) for axis in axes)
        assert tuple(math.prod(axis) for axis in counted) == spec.shape, (counted, spec)
        marks = [mark for axis in counted for mark in axis]
        if self.marks.past in marks:
            raise Mixed("reads a cache other than to put the row of a token behind it")
        if max(marks.count(self.marks.tokens), marks.count(self.marks.keys)) > 1:
            raise Mixed("pairs tokens with tokens, or keys with keys")
        return replace_later(Stacked(spec, counted), later, self.marks)

    def _check_apart(self, marks: Iterable[int], what: str, keys: bool = True) -> None:
        refused = {self.marks.tokens, self.marks.past} | ({self.marks.keys} if keys else set())
        if refused.intersection(marks):
            raise Mixed(what)


def replace_later(x: Stacked, later: Later, marks: StepSizes) -> Stacked:
    """`x` with this number at later keys, where it has any."""
    both = x.counts(marks.tokens) and x.counts(marks.keys)
    wanted = later if both else None
    return x if x.later is wanted else replace(x, later=wanted)


def later_of(x: Operand) -> Later:
    """The value at later keys of an operand; a Python number has this value everywhere."""
    if not isinstance(x, Stacked):
        return float(x)
    return x.later if x.number is None else x.number


def _merged(operands: Iterable[tuple[Sequence[Factors], int]], rank: int) -> list[Factors]:
    """What the axes of a result count, from the axes of the operands and their offsets in the result."""
    merged: list[Factors] = [()] * rank
    for axes, shift in operands:
        for i, axis in enumerate(axes):
            if axis and merged[i + shift]:
                _check_same(axis, merged[i + shift])
            merged[i + shift] = axis or merged[i + shift]
    return merged


def _check_same(ours: Factors, theirs: Factors) -> None:
    if ours != theirs:
        raise Mixed("meets axes that are ordered differently")


def _without(axes: Sequence[Factors], gone: Iterable[int], keep: bool = False) -> tuple[Factors, ...]:
    left = set(gone)
    return tuple(() if i in left else axis for i, axis in enumerate(axes) if keep or i not in left)


def _spec(operand: Operand) -> Any:
    return operand.spec if isinstance(operand, Stacked) else operand

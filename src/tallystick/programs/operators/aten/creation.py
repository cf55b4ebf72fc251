"""Tensors from numbers: filled, counted, and like another tensor in dtype or shape."""
# ruff: noqa: D103  (a decorator says what an operator means)

from __future__ import annotations

import math

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Number, V
from tallystick.programs.operators.aten.arguments import constant, dtype_of_number, wide_dtype
from tallystick.programs.operators.definition import Dtype, Family, Ints, Scalar
from tallystick.programs.operators.precision import FORMATS
from tallystick.programs.operators.types import NUMBERS, check_number

FAMILY = Family("aten")


@FAMILY.moves("full.default", "c")
def full(a: Algebra[V], size: Ints, fill_value: Scalar, dtype: Dtype | None = None) -> V:
    """Without a dtype: BOOL, I64 or F32, as the number is written."""
    return a.full(size, fill_value, dtype or dtype_of_number(fill_value))


@FAMILY.moves("full_like.default", "c")
def full_like(a: Algebra[V], self: V, fill_value: Scalar, dtype: Dtype | None = None) -> V:
    return a.full(self.shape, fill_value, dtype or self.dtype)


@FAMILY.moves("new_full.default", "c")
def new_full(a: Algebra[V], self: V, size: Ints, fill_value: Scalar, dtype: Dtype | None = None) -> V:
    return a.full(size, fill_value, dtype or self.dtype)


def _add_constant(number: int, full: str, like: str, new: str) -> None:
    @FAMILY.moves(full, str(number))
    def filled(a: Algebra[V], size: Ints, dtype: Dtype | None = None) -> V:
        return a.full(size, number, dtype or "F32")

    @FAMILY.moves(like, str(number))
    def filled_like(a: Algebra[V], self: V, dtype: Dtype | None = None) -> V:
        return a.full(self.shape, number, dtype or self.dtype)

    @FAMILY.moves(new, str(number))
    def new_filled(a: Algebra[V], self: V, size: Ints, dtype: Dtype | None = None) -> V:
        return a.full(size, number, dtype or self.dtype)


# Memory that nobody has written is 0.
_add_constant(
    0,
    "zeros.default empty.memory_format",
    "zeros_like.default empty_like.default",
    "new_zeros.default new_empty.default",
)
_add_constant(1, "ones.default", "ones_like.default", "new_ones.default")


@FAMILY.moves("fill.Scalar", "c")
def fill(a: Algebra[V], self: V, value: Scalar) -> V:
    return a.full(self.shape, value, self.dtype)


@FAMILY.rounds("fill.Tensor", "c")
def fill_tensor(a: Algebra[V], self: V, value: V) -> V:
    if value.shape:
        raise MalformedError(f"a tensor is filled with one number, not with {len(value.shape)} axes of them")
    return a.broadcast(a.cast(value, self.dtype), self.shape)


@FAMILY.moves("zero.default", "0")
def zero(a: Algebra[V], self: V) -> V:
    return a.full(self.shape, 0, self.dtype)


@FAMILY.moves("scalar_tensor.default", "c")
def scalar_tensor(a: Algebra[V], s: Scalar, dtype: Dtype | None = None) -> V:
    """0-dimensional; F32 without a dtype, whatever the number."""
    return a.full((), s, dtype or "F32")


@FAMILY.moves("eye.m", "1 on the diagonal")
def eye(a: Algebra[V], n: int, m: int, dtype: Dtype | None = None) -> V:
    rows, columns = a.iota((n, m), 0, "I64"), a.iota((n, m), 1, "I64")
    return a.cast(a.compare(rows, columns, "eq"), dtype or "F32")


@FAMILY.moves("eye.default", "1 on the diagonal")
def square_eye(a: Algebra[V], n: int, dtype: Dtype | None = None) -> V:
    return eye(a, n, n, dtype)


# ---- counting


@FAMILY.rounds("arange.default", "0, 1, …")
def arange(a: Algebra[V], end: Scalar, dtype: Dtype | None = None) -> V:
    return arange_step(a, 0, end, 1, dtype or dtype_of_counts(end))


@FAMILY.rounds("arange.start", "s, s+1, …")
def arange_start(a: Algebra[V], start: Scalar, end: Scalar, dtype: Dtype | None = None) -> V:
    return arange_step(a, start, end, 1, dtype)


@FAMILY.rounds("arange.start_step", "start + i · step, before end")
def arange_step(a: Algebra[V], start: Scalar, end: Scalar, step: Scalar = 1, dtype: Dtype | None = None) -> V:
    """I64 without a dtype if all three are integers, else F32.

    Exact where all numbers are whole and the dtype holds each; else a kernel rounds start, step, product and sum.
    """
    dtype = dtype or dtype_of_counts(start, end, step)
    count = _count(start, end, step)
    if dtype not in NUMBERS:
        raise MalformedError(f"{dtype} does not count")
    if _are_whole(start, step) and max(abs(start), abs(start + step * count)) <= 2 ** (
        FORMATS[dtype].bits if dtype in FLOATS else 53
    ):
        for number in (start, start + step * (count - 1)) if count else ():
            check_number(number, dtype)
        index = a.iota((count,), 0, "I64")
        steps = index if step == 1 else a.mul(index, int(step))
        return a.cast(a.add(steps, int(start)) if start else steps, dtype)
    if dtype not in FLOATS:
        raise MalformedError(f"{dtype} numbers from {start!r:.40} in steps of {step!r:.40}")
    wide = wide_dtype(dtype)
    steps = a.mul(a.iota((count,), 0, wide), constant(a, step, wide))
    return a.cast(a.add(steps, constant(a, start, wide)), dtype)


@FAMILY.composite("linspace.default", "from start to end in equal steps")
def linspace(a: Algebra[V], start: Scalar, end: Scalar, steps: int, dtype: Dtype | None = None) -> V:
    """Counted from the nearer end: start + i·step, end − (steps − 1 − i)·step; floats only."""
    dtype = dtype or "F32"
    if dtype not in FLOATS or steps < 0 or not all(math.isfinite(number) for number in (start, end)):
        raise MalformedError(f"{steps} {dtype} numbers from {start!r:.40} to {end!r:.40}")
    wide = wide_dtype(dtype)
    first, last = constant(a, start, wide), constant(a, end, wide)
    if steps < 2:
        return a.cast(a.broadcast(first, (steps,)), dtype)
    step = a.div(a.sub(last, first), steps - 1)
    index = a.iota((steps,), 0, "I64")
    below = a.add(a.mul(a.cast(index, wide), step), first)
    above = a.sub(last, a.mul(a.cast(a.sub(steps - 1, index), wide), step))
    return a.cast(a.where(a.compare(index, steps // 2, "lt"), below, above), dtype)


def dtype_of_counts(*numbers: Scalar) -> str:
    """The dtype that PyTorch infers for the numbers of `arange`."""
    return "F32" if any(isinstance(number, float) for number in numbers) else "I64"


def _count(start: Number, end: Number, step: Number) -> int:
    if not all(math.isfinite(number) for number in (start, end, step)) or step == 0:
        raise MalformedError(f"a range from {start!r:.40} to {end!r:.40} in steps of {step!r:.40}")
    if (end - start) * step < 0:
        raise MalformedError(f"steps of {step!r:.40} do not lead from {start!r:.40} to {end!r:.40}")
    if _are_whole(start, end, step):
        return -((int(start) - int(end)) // int(step))
    count = (end - start) / step
    if not math.isfinite(count):
        raise MalformedError(f"a range from {start!r:.40} to {end!r:.40} in steps of {step!r:.40}")
    return math.ceil(count)


def _are_whole(*numbers: Number) -> bool:
    return all(number == int(number) for number in numbers)

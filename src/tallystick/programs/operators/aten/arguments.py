"""The conventions of ATen's arguments: axes counted from the end, absent axes, and type promotion.

A kernel computes in one dtype, to which its operands are promoted (PyTorch's type promotion). Tensors with axes decide
first, then 0-dimensional tensors, then numbers; a later group counts only if its category (BOOL, integer, float) is
higher. Kernels compute 16-bit floats in F32 and round once, at the end. If kernels of PyTorch are known to round in
between, a definition uses `stored`, or computes in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS, item_size
from tallystick.programs.operators.algebra import Algebra, Axes, Typed, V
from tallystick.programs.operators.definition import Scalar

SIGNED: Final = ("I8", "I16", "I32", "I64")


def axis_of(x: Typed, dim: int) -> int:
    """`dim` counted from 0; a 0-dimensional tensor has axis 0. Raises `MalformedError` outside the shape."""
    sides = max(len(x.shape), 1)
    if not -sides <= dim < sides:
        raise MalformedError(f"axis {dim} of a tensor with {len(x.shape)} axes")
    return dim % sides


def axes_of(x: Typed, dims: Sequence[int] | None) -> Axes:
    """Distinct `dims` counted from 0 and sorted, all axes where there are none; `()` for a 0-dimensional tensor."""
    if not dims:
        return tuple(range(len(x.shape)))
    axes = sorted(axis_of(x, dim) for dim in dims)
    if len(set(axes)) != len(axes):
        raise MalformedError(f"axes {tuple(dims)!s:.60} repeat")
    return tuple(axes) if x.shape else ()


def lifted(a: Algebra[V], x: V) -> V:
    """A 0-dimensional tensor as one of shape (1,), so that it has axis 0; others as they are."""
    return x if x.shape else a.reshape(x, (1,))


def part(a: Algebra[V], x: V, axis: int, start: int, stop: int, step: int = 1) -> V:
    """`x[start:stop:step]` along one axis; raises `MalformedError` outside of the side."""
    starts, stops, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return a.slice(x, starts, stops, steps)


def flat(a: Algebra[V], x: V) -> V:
    """`x` with one axis."""
    return a.reshape(x, (math.prod(x.shape),))


def dropped(a: Algebra[V], x: V, axes: Collection[int]) -> V:
    """`x` without `axes`, which have a side of 1."""
    return a.reshape(x, [side for axis, side in enumerate(x.shape) if axis not in axes])


def common_dtype(*operands: Typed | Scalar) -> str:
    """The dtype to which the operands are promoted.

    Raises `MalformedError` for two dtypes that PyTorch does not promote to one (unsigned integers wider than 8 bits).
    """
    common = ""
    for group in _by_precedence(operands):
        met = ""
        for dtype in group:
            met = _promoted(met, dtype)
        if not common or not met or _category(met) > _category(common):
            common = _promoted(common, met)
    return common


def wide_dtype(dtype: str) -> str:
    """The dtype in which kernels compute for operands of `dtype`."""
    return "F32" if dtype in {"F16", "BF16"} else dtype


def float_dtype(dtype: str) -> str:
    """`dtype`, or F32 where it is no float: what functions of real numbers return for integers."""
    return dtype if dtype in FLOATS else "F32"


def brought(a: Algebra[V], x: Any, dtype: str) -> Any:
    """An operand in the dtype in which a kernel for `dtype` computes, `wide_dtype(dtype)`.

    A number stays a number. Some kernels first round a 0-dimensional tensor to a 16-bit `dtype`, others do not.
    """
    if isinstance(x, bool | int | float):
        return x
    return a.cast(a.cast(x, dtype), wide_dtype(dtype))


def stored_number(a: Algebra[V], number: Any, dtype: str) -> Any:
    """A number, or a tensor: numbers beside 16-bit floats are rounded to 16 bits by some kernels, to F32 by others."""
    is_narrow = dtype in {"F16", "BF16"} and isinstance(number, int | float)
    return a.wide(constant(a, number, dtype)) if is_narrow else number


def met(a: Algebra[V], *operands: Any, floats: bool = False) -> tuple[str, list[Any]]:
    """The dtype at which operands meet, a float if `floats`, and the operands at the dtype that is computed in."""
    dtype = common_dtype(*operands)
    dtype = float_dtype(dtype) if floats else dtype
    return dtype, [brought(a, x, dtype) for x in operands]


def narrowly_met(a: Algebra[V], *operands: V) -> list[V]:
    """Tensors at the dtype where they meet: for kernels that round every step to 16 bits if that is their dtype."""
    dtype = common_dtype(*operands)
    return [a.cast(x, dtype) for x in operands]


def real(a: Algebra[V], x: V) -> tuple[str, V]:
    """The dtype of a function of real numbers, and `x` at the dtype that it is computed in."""
    dtype = float_dtype(x.dtype)
    return dtype, a.wide(a.cast(x, dtype))


def stored(a: Algebra[V], x: V, dtype: str) -> V:
    """An intermediate result that some kernels round to a 16-bit `dtype` and others keep in F32."""
    return a.wide(a.cast(x, dtype))


def constant(a: Algebra[V], number: float, dtype: str) -> V:
    """A constant that kernels round to `dtype` or compute in several ways: given in F64, then rounded."""
    return a.cast(a.full((), number, "F64"), dtype)


def divided(a: Algebra[V], x: V, divisor: V | float) -> V:
    """`x` times 1 / `divisor`. Some kernels divide; others multiply by the inverse, which rounds once more."""
    number = a.full((), divisor, x.dtype) if isinstance(divisor, int | float) else divisor
    return a.mul(x, a.div(1, number))


def _by_precedence(operands: Sequence[Typed | Scalar]) -> list[list[str]]:
    groups: list[list[str]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, bool | int | float):
            groups[2].append(dtype_of_number(operand))
        else:
            groups[0 if operand.shape else 1].append(operand.dtype)
    return groups


def dtype_of_number(number: Scalar) -> str:
    """The dtype that PyTorch infers for a number, as in `full`."""
    return "BOOL" if isinstance(number, bool) else "I64" if isinstance(number, int) else "F32"


def _category(dtype: str) -> int:
    return 0 if dtype == "BOOL" else 2 if dtype in FLOATS else 1


def _promoted(first: str, second: str) -> str:
    """PyTorch's `promote_types`."""
    if not first or not second or first == second:
        return first or second
    if _category(first) != _category(second):
        return max(first, second, key=_category)
    pair = {first, second}
    if pair <= FLOATS:
        return "F32" if pair == {"F16", "BF16"} else max(pair, key=item_size)
    if pair <= {*SIGNED, "U8"}:
        return "I16" if pair == {"U8", "I8"} else max(pair - {"U8"}, key=SIGNED.index)
    raise MalformedError(f"{first} and {second} do not promote to one dtype")

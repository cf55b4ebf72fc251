"""What StableHLO asks of operands and attributes, where ATen would broadcast, promote or count from the end.

The sections named in this package are those of the StableHLO specification (openxla.org/stablehlo/spec).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import FLOATS
from tallystick.programs.operators.algebra import Algebra, Typed, V

UNSIGNED: Final = frozenset({"U8", "U16", "U32", "U64"})
PRECISIONS: Final = frozenset({"DEFAULT", "HIGH", "HIGHEST"})


def require(holds: bool, complaint: str) -> None:
    """Raise `MalformedError` with `complaint` unless `holds`."""
    if not holds:
        raise MalformedError(complaint)


def alike(*values: Typed) -> None:
    """Raise `MalformedError` unless all values have one dtype and one shape: nothing broadcasts on its own."""
    first, *others = values
    for other in others:
        require(
            (other.dtype, other.shape) == (first.dtype, first.shape),
            f"{first.dtype}{list(first.shape)} beside {other.dtype}{list(other.shape)}",
        )


def one_dtype(*values: Typed) -> None:
    """Raise `MalformedError` unless all values have one dtype."""
    require(len({value.dtype for value in values}) <= 1, f"dtypes {sorted({value.dtype for value in values})} together")


def scalar(*values: Typed) -> None:
    """Raise `MalformedError` unless all values are 0-dimensional."""
    for value in values:
        require(value.shape == (), f"{value.dtype}{list(value.shape)} where a 0-dimensional tensor stands")


def index_scalars(values: Sequence[Typed], count: int) -> None:
    """Raise `MalformedError` unless `values` are `count` 0-dimensional integers of one dtype."""
    require(len(values) == count, f"{len(values)} start indices for {count} axes")
    scalar(*values)
    one_dtype(*values)
    require(all(is_integer(value.dtype) for value in values), "start indices are no integers")


def distinct_axes(axes: Sequence[int], count: int) -> None:
    """Raise `MalformedError` unless `axes` are distinct axes of a tensor with `count` of them."""
    require(len(set(axes)) == len(axes) and all(0 <= axis < count for axis in axes), f"axes {list(axes)} of {count}")


def per_axis(count: int, **lists: Sequence[int]) -> None:
    """Raise `MalformedError` unless every list has `count` entries."""
    for name, entries in lists.items():
        require(len(entries) == count, f"{name} has {len(entries)} entries for {count} axes")


def positive(**lists: Sequence[int]) -> None:
    """Raise `MalformedError` unless every entry of every list is at least 1."""
    for name, entries in lists.items():
        require(all(entry >= 1 for entry in entries), f"{name} {list(entries)} is not positive")


def is_integer(dtype: str) -> bool:
    """Whether elements are integers; BOOL are none."""
    return dtype not in FLOATS and dtype != "BOOL"


def rounded(a: Algebra[V], result: V, like: Typed) -> V:
    """`result` rounded to the dtype of `like`."""
    return result if result.dtype == like.dtype else a.cast(result, like.dtype)


def padded(a: Algebra[V], x: V, value: V, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> V:
    """`x` with the 0-dimensional `value` before, behind and between its elements; §pad."""
    if not any((*low, *high, *interior)):
        return x
    grown = a.pad(x, 0, low, high, interior)
    inside = a.pad(a.full(x.shape, 1, "BOOL"), 0, low, high, interior)
    return a.where(inside, grown, a.broadcast(value, grown.shape))

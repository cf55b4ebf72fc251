"""Memory whose axes lie in another order: for autograd of what writes into slices. Values do not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallystick.errors import MalformedError
from tallystick.operators.algebra import Algebra, V
from tallystick.operators.definition import Exactness, Family

FAMILY: Final = Family()


@FAMILY.operator(
    "aten.new_empty_strided.default",
    "Tensor self, int[] size, int[] stride, *, dtype? dtype=None",
    "0",
    Exactness.MOVES,
)
def new_empty_strided(a: Algebra[V], self: V, size: Sequence[int], stride: Sequence[int], dtype: str | None) -> V:
    """As `new_zeros`; the strides say in which order its axes lie, without gaps, and values do not depend on them."""
    if len(size) != len(stride) or not _are_dense(size, stride):
        raise MalformedError(f"strides {tuple(stride)!s:.60} for shape {tuple(size)!s:.60} leave gaps")
    return a.full(size, 0, dtype or self.dtype)


def _are_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill a block of memory; PyTorch gives axes of one element, and empty tensors, any stride."""
    step = 1
    for along, side in sorted((along, side) for side, along in zip(size, stride, strict=True) if side != 1):
        if along != step:
            return 0 in size
        step *= side
    return True

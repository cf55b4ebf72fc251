"""Numbers in fewer bits, as cheaper layers hold them: what rounding to such a format makes of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.tensors.dtypes import bfloat16_to_float32, round_to_bfloat16, round_to_float16
from tallystick.tensors.tensor import Tensor

Values: TypeAlias = npt.NDArray[np.floating[Any]]


def by_row(bits: int, group: int | None = None) -> Callable[[Values], Values]:
    """Rounding to whole multiples of a step, of which each row, or each group of so many numbers in it, has its own.

    >>> by_row(4)(np.array([[0.0, 0.5, 7.0], [0.0, 0.0, 0.0]]))
    array([[0., 0., 7.],
           [0., 0., 0.]])
    """
    largest = 2 ** (bits - 1) - 1

    def rounded(values: Values) -> Values:
        width = values.shape[-1]
        grouped = values.reshape(*values.shape[:-1], -1, group) if group and width % group == 0 else values
        step = np.abs(grouped).max(axis=-1, keepdims=True, initial=0.0) / largest
        return np.asarray(np.round(grouped / np.where(step > 0.0, step, 1.0)) * step).reshape(values.shape)

    return rounded


FEWER_BITS: Final[Mapping[str, Callable[[Values], Values]]] = {
    "BF16": lambda values: bfloat16_to_float32(round_to_bfloat16(values.astype(np.float32))),
    "F16": round_to_float16,
    "int8 by row": by_row(8),
    "int8 in groups of 64": by_row(8, 64),
    "int4 by row": by_row(4),
}
"""The formats by their names."""


def in_fewer_bits(tensor: Tensor, fewer_bits: Callable[[Values], Values]) -> Tensor:
    """A tensor of floats with rounded numbers, in the dtype that it had."""
    rounded = np.ascontiguousarray(fewer_bits(tensor.values())).astype(np.float32)
    if tensor.dtype == "BF16":
        return Tensor("BF16", tensor.shape, round_to_bfloat16(rounded).tobytes())
    return Tensor.of(rounded.astype(tensor.values().dtype))

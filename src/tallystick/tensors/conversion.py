"""A tensor in another type of floats: widened exactly, or rounded to nearest even, as frameworks do when they load."""

from __future__ import annotations

from typing import Final

import numpy as np

from tallystick.tensors.dtypes import round_to_bfloat16, round_to_float16
from tallystick.tensors.tensor import Tensor

FLOATS: Final = frozenset({"F16", "BF16", "F32", "F64"})


def in_dtype(tensor: Tensor, dtype: str) -> Tensor | None:
    """The tensor in `dtype`; `None` where one of the two is no float of 16, 32 or 64 bits and they differ."""
    if tensor.dtype == dtype:
        return tensor
    if not {tensor.dtype, dtype} <= FLOATS:
        return None
    values = tensor.values()
    if dtype == "BF16":
        with np.errstate(over="ignore"):
            return Tensor.of(round_to_bfloat16(values.astype("<f4")), "BF16")
    if dtype == "F16":
        return Tensor.of(round_to_float16(values))
    with np.errstate(over="ignore"):
        return Tensor.of(values.astype("<f4" if dtype == "F32" else "<f8"))

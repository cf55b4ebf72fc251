"""A tensor: dtype, shape and canonical bytes, little-endian and row-major."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.tensors.dtypes import bfloat16_to_float32, dtype_of, item_size, numpy_dtype


@dataclass(frozen=True)
class Tensor:
    """The bytes of a multi-dimensional array; -0.0 and NaN payloads are bytes like any other.

    Raises `MalformedError` where dtype, shape and number of bytes do not belong together.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    def __post_init__(self) -> None:
        if any(side < 0 for side in self.shape):
            raise MalformedError(f"shape {list(self.shape)} has a negative side")
        needed = math.prod(self.shape) * item_size(self.dtype)
        if needed != self.nbytes:
            raise MalformedError(
                f"{self.nbytes} bytes for {self.dtype} {list(self.shape)}, which takes {needed}"
            )

    @classmethod
    def of(cls, array: npt.NDArray[Any], dtype: str | None = None) -> Tensor:
        """The tensor of an array; shares its memory where that is contiguous and little-endian."""
        held = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return cls(dtype or dtype_of(array.dtype), array.shape, held.reshape(-1).view(np.uint8).data)

    def array(self) -> npt.NDArray[Any]:
        """The elements in their storage type (bfloat16 as uint16), read-only."""
        array = np.frombuffer(self.data, numpy_dtype(self.dtype)).reshape(self.shape)
        array.flags.writeable = False
        return array

    def values(self) -> npt.NDArray[Any]:
        """The elements as numbers NumPy computes with: 16-bit floats become float32."""
        if self.dtype == "BF16":
            return bfloat16_to_float32(self.array())
        return self.array().astype("<f4") if self.dtype == "F16" else self.array()

    def copy(self) -> Tensor:
        """The same tensor in memory of its own."""
        return Tensor(self.dtype, self.shape, bytes(self.data))

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return memoryview(self.data).nbytes


State: TypeAlias = Mapping[str, Tensor]
"""Named tensors: a full training state, or a part of one."""

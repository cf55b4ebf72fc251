"""A tensor: dtype, shape and canonical bytes, little-endian and row-major."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.tensors.dtypes import bfloat16_to_float32, dtype_of, item_size, numpy_dtype

DIMENSIONS_MAX: Final = 64
SPAN_BYTES_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class Tensor:
    """The bytes of a multi-dimensional array; the sign of -0.0 and the payloads of NaNs are kept.

    Raises `MalformedError` unless the number of bytes follows from dtype and shape.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    def __post_init__(self) -> None:
        needed = byte_count(self.dtype, self.shape)
        if needed != self.nbytes:
            raise MalformedError(f"{self.nbytes} bytes for {self.dtype} {list(self.shape)}, which takes {needed}")

    @classmethod
    def of(cls, array: npt.NDArray[Any], dtype: str | None = None) -> Tensor:
        """The tensor of an array; shares its memory if the array is contiguous and little-endian."""
        canonical = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return cls(dtype or dtype_of(array.dtype), array.shape, canonical.reshape(-1).view(np.uint8).data)

    def array(self) -> npt.NDArray[Any]:
        """The elements in their storage type (bfloat16 as uint16), read-only."""
        array = np.frombuffer(self.data, numpy_dtype(self.dtype)).reshape(self.shape)
        array.flags.writeable = False
        return array

    def values(self) -> npt.NDArray[Any]:
        """The elements in a type that NumPy computes with: 16-bit floats become float32."""
        if self.dtype == "BF16":
            return bfloat16_to_float32(self.array())
        return self.array().astype("<f4") if self.dtype == "F16" else self.array()

    def copy(self) -> Tensor:
        """The same tensor with its own copy of the bytes."""
        return Tensor(self.dtype, self.shape, bytes(self.data))

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return memoryview(self.data).nbytes


def byte_count(dtype: str, shape: tuple[int, ...]) -> int:
    """The number of bytes of a tensor; raises `MalformedError` for a shape that no array can have.

    The sides of an empty tensor are limited too, because array libraries multiply its other sides.
    """
    if len(shape) > DIMENSIONS_MAX:
        raise MalformedError(f"{len(shape)} dimensions, more than {DIMENSIONS_MAX}")
    if min(shape, default=0) < 0:
        raise MalformedError(f"shape {list(shape)} has a negative side")
    size = item_size(dtype)
    needed = math.prod(shape) * size
    if (needed or math.prod(side or 1 for side in shape) * size) > SPAN_BYTES_MAX:
        raise MalformedError(f"shape {list(shape)} is larger than any array")
    return needed


State: TypeAlias = Mapping[str, Tensor]
"""Named tensors: a full training state, or a part of one."""

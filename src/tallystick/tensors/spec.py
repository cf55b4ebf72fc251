"""The spec of a tensor: its dtype and shape, without its elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tallystick.tensors.tensor import Tensor, byte_count

FLOATS = frozenset({"F16", "BF16", "F32", "F64"})


@dataclass(frozen=True)
class TensorSpec:
    """A dtype by its safetensors name, and a shape."""

    dtype: str
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """The dtype and shape of `tensor`."""
        return cls(tensor.dtype, tensor.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes; raises `MalformedError` for an unknown dtype or an impossible shape."""
        return byte_count(self.dtype, self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats that operators compute with; 8-bit floats are not."""
        return self.dtype in FLOATS

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

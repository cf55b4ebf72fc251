"""What is known of a tensor before there is one: its dtype and its shape."""

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
        """The spec that `tensor` has."""
        return cls(tensor.dtype, tensor.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes; raises `MalformedError` for a dtype or a shape that no tensor can have."""
        return byte_count(self.dtype, self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers that arithmetic is done on."""
        return self.dtype in FLOATS

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

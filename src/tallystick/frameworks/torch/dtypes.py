"""PyTorch's dtypes by the names this project gives them."""

from __future__ import annotations

from typing import Final

import torch

from tallystick.errors import UnavailableError
from tallystick.tensors.spec import TensorSpec

DTYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype; raises `UnavailableError` for one that graphs do not have, for example complex numbers."""
    name = _NAMES.get(dtype)
    if name is None:
        raise UnavailableError(f"{dtype} has no place in a graph")
    return name


def spec_of(value: torch.Tensor) -> TensorSpec:
    """Dtype and shape; raises `UnavailableError` if a size depends on data."""
    return TensorSpec(dtype_name(value.dtype), tuple(whole(side) for side in value.shape))


def whole(number: int | torch.SymInt) -> int:
    """The value of a size, also of a symbolic one; raises `UnavailableError` if it depends on data."""
    if isinstance(number, torch.SymInt):
        if not number.node.has_hint() or number.node.expr.free_symbols:
            raise UnavailableError(f"a size depends on data: {number}")
        return int(number)
    return number

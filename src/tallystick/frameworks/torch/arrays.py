"""PyTorch as an array library that evaluates the definitions of operators."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from tallystick.operators.arrays import Array, ArrayLibrary, Index, standard_name
from tallystick.tensors.dtypes import numpy_dtype


@dataclass(frozen=True)
class _Torch:
    """PyTorch; U16, U32 and U64 have few operators there."""

    name = "torch"

    @cached_property
    def xp(self) -> Any:
        import array_api_compat.torch

        return array_api_compat.torch

    def dtype(self, name: str) -> Any:
        return getattr(self.xp, standard_name(name))

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def is_known(self, x: Array) -> bool:
        return True

    def asarray(self, elements: Any, dtype: str) -> Array:
        held = self.xp.asarray(np.array(elements, numpy_dtype(dtype)))
        return held.view(self.dtype(dtype))

    def storage(self, x: Array) -> np.ndarray[Any, Any]:
        held = x.detach().cpu()
        is_bfloat16 = held.dtype == self.xp.bfloat16
        return np.asarray((held.contiguous().view(self.xp.uint16) if is_bfloat16 else held).numpy())

    def convert(self, x: Array, dtype: str) -> Array:
        return x.to(self.dtype(dtype))

    def erf(self, x: Array) -> Array:
        return self.xp.erf(x)

    def rsqrt(self, x: Array) -> Array:
        return self.xp.rsqrt(x)

    def sigmoid(self, x: Array) -> Array:
        return self.xp.sigmoid(x)

    def matmul(self, x: Array, y: Array) -> Array:
        return self.xp.matmul(x, y)

    def plus_times(self, x: Array, y: Array, factor: float) -> Array:
        return self.xp.add(x, y, alpha=factor)

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        places = [None if isinstance(place, slice) else place for place in index]
        return self.xp.ops.aten.index_put(x, places, updates, add)

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        return x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]


TORCH: Final[ArrayLibrary] = _Torch()


@dataclass(frozen=True)
class _Quick(_Torch):
    """PyTorch for arrays of one dtype."""

    @cached_property
    def xp(self) -> Any:
        return _QuickNames()


class _QuickNames:
    """The namespace of the standard, with PyTorch's own functions where operands have one dtype.

    Those of the standard first look for operands that PyTorch would promote otherwise, which takes longer than small
    operations themselves.
    """

    @cached_property
    def _standard(self) -> Any:
        return TORCH.xp

    def __getattr__(self, name: str) -> Any:
        import torch

        found = getattr(torch, _QUICK[name]) if name in _QUICK else getattr(self._standard, name)
        setattr(self, name, found)
        return found


_EQUAL_NAMES: Final = (
    *("abs", "sqrt", "exp", "expm1", "log", "log1p", "tanh", "sin", "cos", "isfinite", "isinf", "where"),
    *("any", "all", "add", "sum", "stack", "reshape", "broadcast_to"),
)
_QUICK: Final = {
    **{name: name for name in _EQUAL_NAMES},
    "negative": "neg",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "permute_dims": "permute",
}

QUICK: Final[ArrayLibrary] = _Quick()

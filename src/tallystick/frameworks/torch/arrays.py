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

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        places = [None if isinstance(place, slice) else place for place in index]
        return self.xp.ops.aten.index_put(x, places, updates, add)

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        return x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]


TORCH: Final[ArrayLibrary] = _Torch()

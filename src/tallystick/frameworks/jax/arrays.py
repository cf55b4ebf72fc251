"""JAX as an array library that evaluates the definitions of operators."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from tallystick.operators.arrays import Array, ArrayLibrary, Index, standard_name
from tallystick.tensors.dtypes import numpy_dtype


@dataclass(frozen=True)
class _Jax:
    """JAX, inside or outside a trace; for 64-bit dtypes the caller must set `jax.enable_x64`."""

    name = "jax"

    @cached_property
    def xp(self) -> Any:
        import jax.numpy

        return jax.numpy

    def dtype(self, name: str) -> Any:
        return self.xp.dtype(standard_name(name))

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def is_known(self, x: Array) -> bool:
        import jax

        return not isinstance(x, jax.core.Tracer)

    def asarray(self, elements: Any, dtype: str) -> Array:
        held = np.asarray(elements, numpy_dtype(dtype))
        return self.xp.asarray(held.view(self.dtype(dtype)))

    def storage(self, x: Array) -> np.ndarray[Any, Any]:
        held = np.asarray(x)
        return held.view("<u2") if x.dtype == self.xp.bfloat16 else held

    def convert(self, x: Array, dtype: str) -> Array:
        return x.astype(self.dtype(dtype))

    def erf(self, x: Array) -> Array:
        import jax

        return jax.lax.erf(x)

    def rsqrt(self, x: Array) -> Array:
        import jax

        return jax.lax.rsqrt(x)

    def sigmoid(self, x: Array) -> Array:
        import jax

        return jax.lax.logistic(x)

    def matmul(self, x: Array, y: Array) -> Array:
        return self.xp.matmul(x, y, precision="highest")

    def plus_times(self, x: Array, y: Array, factor: float) -> Array:
        return x + factor * y

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        return x.at[index].add(updates) if add else x.at[index].set(updates)

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        positions = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
        places = stride * np.arange(positions)[:, None] + dilation * np.arange(size)
        return self.xp.moveaxis(self.xp.take(x, places, axis=axis), axis + 1, -1)


JAX: Final[ArrayLibrary] = _Jax()

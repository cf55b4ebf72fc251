"""The array libraries that values are computed on: NumPy, PyTorch, JAX.

All three follow the Python array API standard (2025.12); `xp` is the namespace. What the standard lacks, or leaves to
the library, has one small method here in each of the three.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from tallystick.errors import UnavailableError
from tallystick.tensors.dtypes import bfloat16_to_float32, numpy_dtype

Array: TypeAlias = Any
Index: TypeAlias = tuple[Any, ...]
_STANDARD_NAMES: Final = {
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "BOOL": "bool",
}
_erf: Final[Callable[[Array], Array]] = np.frompyfunc(math.erf, 1, 1)


class ArrayLibrary(Protocol):
    """One array library, on one device."""

    @property
    def name(self) -> str:
        """`numpy`, `torch` or `jax`."""
        ...

    @property
    def xp(self) -> Any:
        """The namespace of the array API standard."""
        ...

    def dtype(self, name: str) -> Any:
        """The library's own name of a dtype; raises `UnavailableError` where it has none."""
        ...

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        """Infinities, NaNs and wrapping integers are results like any other: no warnings within."""
        ...

    def is_known(self, x: Array) -> bool:
        """Whether there are elements yet: a traced array has none."""
        ...

    def asarray(self, elements: Any, dtype: str) -> Array:
        """Numbers, or a NumPy array in storage form (bfloat16 as its bits), as an array."""
        ...

    def storage(self, x: Array) -> np.ndarray[Any, Any]:
        """A NumPy array in storage form (bfloat16 as its bits)."""
        ...

    def convert(self, x: Array, dtype: str) -> Array:
        """To another dtype, as C does; from floats to integers only NumPy says what becomes of the unrepresentable."""
        ...

    def erf(self, x: Array) -> Array:
        """The error function."""
        ...

    def rsqrt(self, x: Array) -> Array:
        """1 / √x."""
        ...

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + e⁻ˣ)."""
        ...

    def matmul(self, x: Array, y: Array) -> Array:
        """Matrix product of stacks, in the precision of the dtype."""
        ...

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        """A copy of `x` with `updates` written, or added, at `index`; with `add` an index may occur repeatedly."""
        ...

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        """`axis` becomes the position of a sliding window, a last axis the place within it."""
        ...


def library(name: str, device: Any = None) -> ArrayLibrary:
    """An array library by name; `UnavailableError` for an unknown one, `ImportError` where it is not installed."""
    match name:
        case "numpy":
            return NUMPY
        case "torch":
            return _Torch(device)
        case "jax":
            return _Jax(device)
    raise UnavailableError(f"no array library {name[:40]!r}; there are numpy, torch and jax")


@dataclass(frozen=True)
class _Numpy:
    """NumPy, which follows the standard itself: what the verifier trusts."""

    name = "numpy"
    xp = np

    def dtype(self, name: str) -> Any:
        if name == "BF16" or name.startswith("F8"):
            raise UnavailableError(f"NumPy does not compute in {name}")
        return numpy_dtype(name)

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        return np.errstate(all="ignore")

    def is_known(self, x: Array) -> bool:
        return True

    def asarray(self, elements: Any, dtype: str) -> Array:
        return np.asarray(elements, self.dtype(dtype))

    def storage(self, x: Array) -> np.ndarray[Any, Any]:
        return np.asarray(x)

    def convert(self, x: Array, dtype: str) -> Array:
        """NaN becomes integer 0 and the unrepresentable the nearest integer, as in XLA."""
        target = self.dtype(dtype)
        if x.dtype.kind == "f" and target.kind in "iu":
            return _saturated(x, target)
        return x.astype(target)

    def erf(self, x: Array) -> Array:
        return np.asarray(_erf(x)).astype(x.dtype)

    def rsqrt(self, x: Array) -> Array:
        return 1 / np.sqrt(x)

    def sigmoid(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    def matmul(self, x: Array, y: Array) -> Array:
        return np.matmul(x, y)

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        result = np.array(x)
        if add:
            np.add.at(result, index, updates)
        else:
            result[index] = updates
        return result

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        span = dilation * (size - 1) + 1
        views = np.lib.stride_tricks.sliding_window_view(x, span, axis=axis)
        return views[_every(axis, stride, views.ndim)][..., ::dilation]


NUMPY: Final[ArrayLibrary] = _Numpy()


@dataclass(frozen=True)
class _Torch:
    """PyTorch; U16, U32 and U64 have few operators there."""

    device: Any = None
    name = "torch"

    @cached_property
    def xp(self) -> Any:
        import array_api_compat.torch

        return array_api_compat.torch

    def dtype(self, name: str) -> Any:
        return getattr(self.xp, _standard_name(name))

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def is_known(self, x: Array) -> bool:
        return True

    def asarray(self, elements: Any, dtype: str) -> Array:
        held = self.xp.asarray(np.array(elements, numpy_dtype(dtype)), device=self.device)
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


@dataclass(frozen=True)
class _Jax:
    """JAX, inside a trace or outside; 64-bit dtypes need `jax.enable_x64`, which whoever calls has to set."""

    device: Any = None
    name = "jax"

    @cached_property
    def xp(self) -> Any:
        import jax.numpy

        return jax.numpy

    def dtype(self, name: str) -> Any:
        return self.xp.dtype(_standard_name(name))

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def is_known(self, x: Array) -> bool:
        import jax

        return not isinstance(x, jax.core.Tracer)

    def asarray(self, elements: Any, dtype: str) -> Array:
        held = np.asarray(elements, numpy_dtype(dtype))
        return self.xp.asarray(held.view(self.dtype(dtype)), device=self.device)

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

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        return x.at[index].add(updates) if add else x.at[index].set(updates)

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        positions = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
        places = stride * np.arange(positions)[:, None] + dilation * np.arange(size)
        return self.xp.moveaxis(self.xp.take(x, places, axis=axis), axis + 1, -1)


def exact_float64(bits: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Floats in storage form as float64, which holds every float of 16, 32 and 64 bits exactly."""
    return (bfloat16_to_float32(bits) if dtype == "BF16" else bits).astype(np.float64)


def _standard_name(name: str) -> str:
    if name not in _STANDARD_NAMES:
        raise UnavailableError(f"no array library computes in {name[:40]!r}")
    return _STANDARD_NAMES[name]


def _saturated(x: Array, target: np.dtype[Any]) -> Array:
    """Bounds are compared as floats: the largest I64 and U64 are none, and the power of two above them is."""
    limits = np.iinfo(target)
    too_large, too_small = x >= float(limits.max), x <= float(limits.min)
    inside = np.where(too_large | too_small | np.isnan(x), 0, x).astype(target)
    return np.where(too_large, limits.max, np.where(too_small, limits.min, inside)).astype(target)


def _every(axis: int, stride: int, axes: int) -> tuple[slice, ...]:
    return tuple(slice(None, None, stride if place == axis else None) for place in range(axes))

"""The interface of an array library on which values are computed, and its implementation for NumPy.

Every library follows the Python array API standard (2025.12); `xp` is the namespace. Each operation that the standard
lacks, or leaves open, is one small method. The implementations for PyTorch and JAX are in `frameworks`.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import bfloat16_to_float32, numpy_dtype

Array: TypeAlias = Any
Index: TypeAlias = tuple[Any, ...]
_STANDARD_NAMES: Final = {
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "BOOL": "bool",
}


class ArrayLibrary(Protocol):
    """One array library, on one device."""

    @property
    def name(self) -> str:
        """`numpy`, `torch` or `jax`."""

    @property
    def xp(self) -> Any:
        """The namespace of the array API standard."""

    def dtype(self, name: str) -> Any:
        """The library's dtype for this name; raises `UnavailableError` if it has none."""

    def quiet(self) -> contextlib.AbstractContextManager[Any]:
        """A context without warnings about infinities, NaNs and wrapping integers, which are valid results."""

    def is_known(self, x: Array) -> bool:
        """Whether the elements are known; those of a traced array are not."""

    def asarray(self, elements: Any, dtype: str) -> Array:
        """An array from numbers, or from a NumPy array in storage form (bfloat16 as its bits)."""

    def storage(self, x: Array) -> np.ndarray[Any, Any]:
        """A NumPy array in storage form (bfloat16 as its bits)."""

    def convert(self, x: Array, dtype: str) -> Array:
        """Convert as C does; from floats to integers, only NumPy's version defines results for values out of range."""

    def erf(self, x: Array) -> Array:
        """The error function."""

    def rsqrt(self, x: Array) -> Array:
        """1 / √x."""

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + e⁻ˣ)."""

    def matmul(self, x: Array, y: Array) -> Array:
        """Matrix product of stacks, in the precision of the dtype."""

    def plus_times(self, x: Array, y: Array, factor: float) -> Array:
        """X + `factor` · y."""

    def put(self, x: Array, index: Index, updates: Array, add: bool) -> Array:
        """A copy of `x` with `updates` written, or added, at `index`; with `add` an index may occur repeatedly."""

    def windows(self, x: Array, axis: int, size: int, stride: int, dilation: int) -> Array:
        """Sliding windows: `axis` becomes the position of the window, and a new last axis the place within it."""


@dataclass(frozen=True)
class _Numpy:
    """NumPy, which follows the standard itself; the only array library that a verifier trusts."""

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
        """As in XLA, NaN becomes the integer 0, and a float out of range the nearest integer."""
        target = self.dtype(dtype)
        if x.dtype.kind == "f" and target.kind in "iu":
            return _saturated(x, target)
        return x.astype(target)

    def erf(self, x: Array) -> Array:
        results = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
        return results.reshape(x.shape).astype(x.dtype)

    def rsqrt(self, x: Array) -> Array:
        return 1 / np.sqrt(x)

    def sigmoid(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    def matmul(self, x: Array, y: Array) -> Array:
        return np.matmul(x, y)

    def plus_times(self, x: Array, y: Array, factor: float) -> Array:
        return x + factor * y

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
        every = tuple(slice(None, None, stride if place == axis else None) for place in range(views.ndim))
        return views[every][..., ::dilation]


NUMPY: Final[ArrayLibrary] = _Numpy()


def exact_float64(bits: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Floats in storage form as float64, which holds every float of 16, 32 and 64 bits exactly."""
    return (bfloat16_to_float32(bits) if dtype == "BF16" else bits).astype(np.float64)


def standard_name(name: str) -> str:
    """The array API's name of a dtype; raises `UnavailableError` if it has none."""
    if name not in _STANDARD_NAMES:
        raise UnavailableError(f"no array library computes in {name[:40]!r}")
    return _STANDARD_NAMES[name]


def _saturated(x: Array, target: np.dtype[Any]) -> Array:
    """Floats clipped to the range of integers. The upper bound is the power of two above the largest integer.

    The largest I64 and U64 are not floats, but the powers of two above them are.
    """
    limits = np.iinfo(target)
    too_large, too_small = x >= float(limits.max), x <= float(limits.min)
    inside = np.where(too_large | too_small | np.isnan(x), 0, x).astype(target)
    return np.where(too_large, limits.max, np.where(too_small, limits.min, inside)).astype(target)

"""Element types by their safetensors names, and rounding to the two 16-bit floats.

NumPy has no bfloat16 and no 8-bit floats, so arrays hold their bits as unsigned integers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError

STORAGE: Final[dict[str, str]] = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "F8_E4M3": "|u1",
    "F8_E5M2": "|u1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
ROUNDOFF: Final = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
"""The unit roundoff u: rounding to nearest changes a normal number by at most the factor 1 ± u (IEEE 754 §4.3.1)."""
_NAMES: Final = {form: name for name, form in STORAGE.items() if name not in {"BF16", "F8_E4M3", "F8_E5M2"}}
_SIZES: Final = {name: np.dtype(form).itemsize for name, form in STORAGE.items()}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The little-endian NumPy dtype that stores the elements; raises `MalformedError` for an unknown name."""
    if dtype not in STORAGE:
        raise MalformedError(f"dtype {dtype[:40]!r} is unknown")
    return np.dtype(STORAGE[dtype])


def item_size(dtype: str) -> int:
    """Bytes per element; raises `MalformedError` for an unknown name."""
    size = _SIZES.get(dtype)
    return numpy_dtype(dtype).itemsize if size is None else size


def dtype_of(form: np.dtype[Any]) -> str:
    """The safetensors name of a NumPy dtype; raises `MalformedError` if it has none."""
    name = _NAMES.get(form.newbyteorder("<").str)
    if name is None:
        raise MalformedError(f"NumPy dtype {form} has no canonical name")
    return name


def round_to_float16(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float16]:
    """Round to float16, nearest even; magnitudes of 65520 and more become infinite (IEEE 754-2019 §4.3.1).

    Every NaN becomes the quiet NaN 0x7E00, because processors differ in how much of a payload they keep.
    """
    values = np.asarray(values)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = values.astype("<f2")
    rounded[np.isnan(values)] = np.nan
    return rounded


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to bfloat16 bits in uint16, nearest even; a NaN stays a NaN and becomes quiet."""
    bits = np.asarray(values, "<f4").view("<u4")
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.asarray(np.where(is_nan, quiet, rounded), "<u2")


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The exact float32 values of bfloat16 bits."""
    return np.asarray(np.asarray(bits, "<u4") << 16, "<u4").view("<f4")

"""Tensors: element types, specs, canonical bytes, and conversions between types of floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError

# Element types by their safetensors names, and rounding to the two 16-bit floats.
#
# NumPy has no bfloat16 and no 8-bit floats, so arrays hold their bits as unsigned integers.

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


# A tensor: dtype, shape and canonical bytes, little-endian and row-major.

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


# The spec of a tensor: its dtype and shape, without its elements.

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


# A tensor in another type of floats: widened exactly, or rounded to nearest even, as frameworks do when they load.


def in_dtype(tensor: Tensor, dtype: str) -> Tensor | None:
    """The tensor in `dtype`; `None` where one of the two is no float of 16, 32 or 64 bits and they differ."""
    if tensor.dtype == dtype:
        return tensor
    if not {tensor.dtype, dtype} <= FLOATS:
        return None
    values = tensor.values()
    if dtype == "BF16":
        with np.errstate(over="ignore"):
            return Tensor.of(round_to_bfloat16(values.astype("<f4")), "BF16")
    if dtype == "F16":
        return Tensor.of(round_to_float16(values))
    with np.errstate(over="ignore"):
        return Tensor.of(values.astype("<f4" if dtype == "F32" else "<f8"))


# Numbers in fewer bits, as cheaper layers hold them: what rounding to such a format makes of a tensor.

Values: TypeAlias = npt.NDArray[np.floating[Any]]


def by_row(bits: int, group: int | None = None) -> Callable[[Values], Values]:
    """Rounding to whole multiples of a step; each row, or each `group` of numbers in it, has a step of its own.

    >>> by_row(4)(np.array([[0.0, 0.5, 7.0], [0.0, 0.0, 0.0]]))
    array([[0., 0., 7.],
           [0., 0., 0.]])
    """
    largest = 2 ** (bits - 1) - 1

    def rounded(values: Values) -> Values:
        width = values.shape[-1]
        grouped = values.reshape(*values.shape[:-1], -1, group) if group and width % group == 0 else values
        step = np.abs(grouped).max(axis=-1, keepdims=True, initial=0.0) / largest
        return np.asarray(np.round(grouped / np.where(step > 0.0, step, 1.0)) * step).reshape(values.shape)

    return rounded


FEWER_BITS: Final[Mapping[str, Callable[[Values], Values]]] = {
    "BF16": lambda values: bfloat16_to_float32(round_to_bfloat16(values.astype(np.float32))),
    "F16": round_to_float16,
    "int8 by row": by_row(8),
    "int8 in groups of 64": by_row(8, 64),
    "int4 by row": by_row(4),
}
"""The formats by their names."""


def in_fewer_bits(tensor: Tensor, fewer_bits: Callable[[Values], Values]) -> Tensor:
    """A tensor of floats with rounded numbers, in the dtype that it had."""
    rounded = np.ascontiguousarray(fewer_bits(tensor.values())).astype(np.float32)
    if tensor.dtype == "BF16":
        return Tensor("BF16", tensor.shape, round_to_bfloat16(rounded).tobytes())
    return Tensor.of(rounded.astype(tensor.values().dtype))

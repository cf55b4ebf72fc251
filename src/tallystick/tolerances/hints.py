"""Boundary hints: for each of the prover's values near a rounding edge, the side of the edge on which it lies.

Layout, after the line `tallystick/hints/v1`: the tensors in ascending order of their UTF-8 names, each as

    name length (u16) · name · element count (u64) · hint count (u64) · byte count (u64) · hints

little-endian. A hint is a base-128 number: seven bits per byte, low bits first, high bit set on all but the last byte.
It holds 2 · (index - previous index - 1) + side. The first previous index is -1. Side 1 is the upper bucket.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError

MAGIC: Final = b"tallystick/hints/v1\n"
BYTES_MAX: Final = 1 << 30
NAME_BYTES_MAX: Final = 4096
COUNTS: Final = struct.Struct("<QQQ")
DIGITS_MAX: Final = 9  # 63 bits hold every index and its side
BATCH: Final = 1 << 16
Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TensorHints:
    """The hints of one tensor of `size` elements: ascending flat indices, and a side for each (true is upper)."""

    size: int
    indices: npt.NDArray[np.int64]
    sides: npt.NDArray[np.bool_]


Hints: TypeAlias = Mapping[str, TensorHints]


def encode_hints(hints: Hints) -> bytes:
    """The bytes of `hints`; tensors without a hint are left out."""
    named = sorted((name.encode(), entry) for name, entry in hints.items() if entry.indices.size)
    return MAGIC + b"".join(_encode_tensor(name, entry) for name, entry in named)


def parse_hints(data: bytes, what: str = "hints", *, bytes_max: int = BYTES_MAX) -> dict[str, TensorHints]:
    """The hints written in `data`; raises `MalformedError` naming `what` unless the bytes are canonical."""
    if len(data) > bytes_max:
        raise MalformedError(f"{what}: {len(data)} bytes exceed the limit of {bytes_max}")
    if not data.startswith(MAGIC):
        raise MalformedError(f"{what}: does not begin with {MAGIC.decode().strip()}")
    hints: dict[str, TensorHints] = {}
    previous, position = None, len(MAGIC)
    while position < len(data):
        name, position = _take_name(data, position, what)
        if previous is not None and name <= previous:
            raise MalformedError(f"{what}: tensor names are not ascending")
        hints[_as_text(name, what)], position = _take_tensor(data, position, f"{what}: {name!r}")
        previous = name
    return hints


def _encode_tensor(name: bytes, entry: TensorHints) -> bytes:
    assert len(name) <= NAME_BYTES_MAX
    steps = np.diff(entry.indices, prepend=-1) - 1
    numbers = (steps.astype(np.uint64) << np.uint64(1)) | entry.sides.astype(np.uint64)
    body = b"".join(_encode_numbers(numbers[start : start + BATCH]) for start in range(0, numbers.size, BATCH))
    counts = COUNTS.pack(entry.size, entry.indices.size, len(body))
    return struct.pack("<H", len(name)) + name + counts + body


def _take_name(data: bytes, position: int, what: str) -> tuple[bytes, int]:
    head, position = _take(data, position, 2, what)
    (length,) = struct.unpack("<H", head)
    if length > NAME_BYTES_MAX:
        raise MalformedError(f"{what}: a tensor name of {length} bytes")
    return _take(data, position, length, what)


def _take_tensor(data: bytes, position: int, what: str) -> tuple[TensorHints, int]:
    head, position = _take(data, position, COUNTS.size, what)
    size, count, length = COUNTS.unpack(head)
    if size > 1 << 62 or not 0 < count <= size:
        raise MalformedError(f"{what}: {count} hints for {size} elements")
    body, position = _take(data, position, length, what)
    numbers = _parse_numbers(np.frombuffer(body, np.uint8), count, what)
    steps = (numbers >> np.uint64(1)).astype(np.int64) + 1
    if steps.max() > size or float(steps.sum(dtype=np.float64)) > 2.0**62:
        raise MalformedError(f"{what}: a hint lies outside the tensor")
    indices = np.cumsum(steps) - 1
    if indices[-1] >= size:
        raise MalformedError(f"{what}: a hint lies outside the tensor")
    return TensorHints(size, indices, (numbers & np.uint64(1)).astype(bool)), position


def _take(data: bytes, position: int, count: int, what: str) -> tuple[bytes, int]:
    if count > len(data) - position:
        raise MalformedError(f"{what}: ends in the middle of an entry")
    return data[position : position + count], position + count


def _as_text(name: bytes, what: str) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise MalformedError(f"{what}: a tensor name is not UTF-8") from None


def _encode_numbers(numbers: npt.NDArray[np.uint64]) -> bytes:
    digits = np.arange(DIGITS_MAX, dtype=np.uint64) * np.uint64(7)
    shifted = numbers[:, None] >> digits
    more = np.zeros(shifted.shape, bool)
    more[:, :-1] = shifted[:, 1:] > 0
    written = np.ones(shifted.shape, bool)
    written[:, 1:] = shifted[:, 1:] > 0
    return ((shifted & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8)[written].tobytes()


def _parse_numbers(body: Bytes, count: int, what: str) -> npt.NDArray[np.uint64]:
    ends = np.flatnonzero(body < 0x80)
    if ends.size != count or ends[-1] != body.size - 1:
        raise MalformedError(f"{what}: {ends.size} numbers in place of {count}")
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > DIGITS_MAX or (body[ends[lengths > 1]] == 0).any():
        raise MalformedError(f"{what}: a number is not written in its shortest form")
    digit_place = np.arange(body.size) - np.repeat(ends - lengths + 1, lengths)
    digits = (body & 0x7F).astype(np.uint64) << (digit_place * 7).astype(np.uint64)
    numbers: npt.NDArray[np.uint64] = np.add.reduceat(digits, ends - lengths + 1)
    return numbers

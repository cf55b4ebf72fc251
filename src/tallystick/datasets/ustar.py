"""The canonical USTAR archive of a directory: one tree of files has one sequence of bytes.

POSIX.1-1988 `ustar`, as Python's `tarfile` writes it: members sorted by the bytes of their names; mode 0644
(an empty directory 0755), owner, group and time zero, no owner names; zeros up to a multiple of 10,240 bytes.
Directories that hold something are implied by the names of what they hold.
"""

from __future__ import annotations

import struct
from typing import Final

from tallystick.datasets.names import shown
from tallystick.errors import MalformedError

BLOCK_BYTES: Final = 512
RECORD_BYTES: Final = 10_240
MEMBER_BYTES_MAX: Final = 8**11 - 1
NAME_BYTES: Final = 100
PREFIX_BYTES: Final = 155
HEADER: Final = struct.Struct("100s 8s 8s 8s 12s 12s 8s 1s 100s 6s 2s 32s 32s 8s 8s 155s 12x")
MODE_OF: Final = {b"0": b"0000644\0", b"5": b"0000755\0"}


def encode_header(name: str, size: int) -> bytes:
    """The 512 bytes before a member of `size` bytes; a name with a final slash is an empty directory.

    Raises:
        MalformedError: when the name or the size does not fit into USTAR.
    """
    if size > MEMBER_BYTES_MAX:
        raise MalformedError(f"{shown(name)}: {size} bytes, more than USTAR can hold ({MEMBER_BYTES_MAX})")
    blank = _pack(name, size, b" " * 8)
    return _pack(name, size, b"%06o\0 " % sum(blank))


def decode_header(header: bytes) -> tuple[str, int]:
    """The name and size in a canonical header; raises `MalformedError` for any other bytes."""
    parts = HEADER.unpack(header)
    name = _field(parts[15], b"/") + _field(parts[0], b"")
    text = name.decode("utf-8", "surrogateescape")
    if parts[7] not in MODE_OF:
        raise MalformedError(f"{shown(text)}: a link, device or other special member (type {parts[7]!r})")
    size = _octal(parts[4], text)
    if encode_header(text, size) != header:
        raise MalformedError(f"{shown(text)}: not a canonical USTAR header")
    return text, size


def padding(size: int) -> bytes:
    """The zeros that fill the last block of a member."""
    return bytes(-size % BLOCK_BYTES)


def ending(size: int) -> bytes:
    """The zeros after `size` bytes of members: two blocks at least, up to a multiple of 10,240."""
    return bytes(2 * BLOCK_BYTES + -(size + 2 * BLOCK_BYTES) % RECORD_BYTES)


def _pack(name: str, size: int, checksum: bytes) -> bytes:
    kind = b"5" if name.endswith("/") else b"0"
    prefix, rest = _split(name)
    numbers = MODE_OF[kind], b"0000000\0", b"0000000\0", b"%011o\0" % size, b"00000000000\0"
    return HEADER.pack(rest, *numbers, checksum, kind, b"", b"ustar\0", b"00", b"", b"", b"", b"", prefix)


def _split(name: str) -> tuple[bytes, bytes]:
    """Prefix and name: the prefix is empty where it can be, and otherwise as short as possible."""
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) <= NAME_BYTES:
        return b"", raw
    for at, byte in enumerate(raw[:-1]):
        if byte == 0x2F and at <= PREFIX_BYTES and len(raw) - at - 1 <= NAME_BYTES:
            return raw[:at], raw[at + 1 :]
    raise MalformedError(f"the name {shown(name)} does not fit into a USTAR header")


def _field(raw: bytes, end: bytes) -> bytes:
    value = raw.split(b"\0", 1)[0]
    return value + end if value else b""


def _octal(raw: bytes, name: str) -> int:
    digits = raw[:11]
    if set(digits) - set(b"01234567"):
        raise MalformedError(f"{shown(name)}: its size is not octal")
    return int(digits, 8)

"""Writes a safetensors file tensor by tensor, past the page cache where files are large."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from contextlib import closing, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

from tallystick.core.errors import UnavailableError
from tallystick.core.safetensors import ALIGNMENT, LENGTH_BYTES, Placement, check_booleans, encode_placements
from tallystick.core.tensors import Tensor, TensorSpec

# Writes into a file past the system's page cache, as large files are better written.
#
# A file of gigabytes pushes everything else out of the cache, and its writer pays for every page that the system has to
# find: on a machine whose memory is in use, several times what hashing the same bytes takes.

BLOCK_BYTES: Final = 4 << 20
SECTOR_BYTES: Final = 4096
"""Disks take whole sectors, from memory that begins at such a boundary, as pages do."""


class DirectFile:
    """Writes into an existing file, from byte `start` on.

    Up to `SECTOR_BYTES` − 1 bytes before and behind them become zero. Raises `OSError`, at once where the system or
    the disk has no such way.
    """

    def __init__(self, path: Path, start: int) -> None:
        flag = getattr(os, "O_DIRECT", None)
        if flag is None:
            raise OSError("this system writes no file past its cache")
        self._handle = os.open(path, os.O_WRONLY | flag)
        self._block, self._filled = mmap.mmap(-1, BLOCK_BYTES), start % SECTOR_BYTES
        self._position = start - self._filled

    def write(self, data: memoryview) -> None:
        """Add bytes."""
        while data.nbytes:
            taken = min(data.nbytes, BLOCK_BYTES - self._filled)
            self._block[self._filled : self._filled + taken] = data[:taken]
            self._filled, data = self._filled + taken, data[taken:]
            if self._filled == BLOCK_BYTES:
                self._flush()

    def finish(self) -> None:
        """Write the bytes since the last whole block."""
        whole = self._filled + -self._filled % SECTOR_BYTES
        self._block[self._filled : whole] = bytes(whole - self._filled)
        self._filled = whole
        self._flush()

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _flush(self) -> None:
        with memoryview(self._block) as block:
            taken = 0
            while taken < self._filled:
                taken += self._written(block[taken : self._filled], self._position + taken)
        self._position, self._filled = self._position + self._filled, 0

    def _written(self, data: memoryview, position: int) -> int:
        """How much was written; a file system that takes no such write, though it opened the file, gets a usual one."""
        try:
            return os.pwrite(self._handle, data, position)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            flags = fcntl.fcntl(self._handle, fcntl.F_GETFL)
            fcntl.fcntl(self._handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            return os.pwrite(self._handle, data, position)


# Writes a safetensors file tensor by tensor: the tensors lie in the order in which they come.
#
# The header stands first and names places that are known last. So room for the largest header that is possible is left
# at the beginning, and the header is padded with spaces to fill it.

GATHERED_BYTES: Final = 4 << 20
GATHERED_MAX: Final = 256
"""So much is written at once, from where it lies; systems take at most 1,024 pieces."""
RESERVED_BYTES: Final = 64 << 20
"""The disk space that is asked for at once. ext4 takes several times as long to find it page by page."""
DIRECT_BYTES_MIN: Final = 64 << 20
"""From this size on a file is written past the page cache. What is smaller is read again soon, and stays there."""


class AppendedState:
    """A new safetensors file; a context manager, which writes the header unless the block fails.

    It takes tensors with names of `name_bytes` ASCII characters, at most one for each of `specs`, whose bytes nothing
    changes until the block ends. The same tensors in the same order give the same bytes. A crash leaves a file that no
    reader takes. Raises `UnavailableError` if the file cannot be written.
    """

    def __init__(self, path: Path, specs: Iterable[TensorSpec], name_bytes: int) -> None:
        specs = tuple(specs)
        self._name, self._placed = path.name, dict[str, Placement]()
        self._room, self._position = _header_bytes_max(specs, name_bytes), 0
        self._bytes_max = LENGTH_BYTES + self._room + sum(spec.nbytes for spec in specs)
        self._gathered, self._gathered_bytes, self._reserved = list[memoryview](), 0, 0
        try:
            self._file = path.open("wb", buffering=0)
            self._file.seek(LENGTH_BYTES + self._room)
        except OSError as error:
            raise self._refused(error) from error
        self._direct = _direct(path, LENGTH_BYTES + self._room) if self._bytes_max >= DIRECT_BYTES_MIN else None

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of this name was written."""
        return name in self._placed

    def append(self, name: str, tensor: Tensor) -> None:
        """Write a tensor behind the others, once under each name.

        Raises `MalformedError` if a boolean is neither 0 nor 1, `UnavailableError` if the file cannot be written.
        """
        assert name not in self._placed
        check_booleans(name, tensor)
        end = self._position + tensor.nbytes
        self._placed[name] = Placement(tensor.dtype, tensor.shape, self._position, end)
        self._position = end
        self._gather(tensor.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._file, closing(self._direct) if self._direct else nullcontext():
                if kind is None:
                    self._finish()
        except OSError as failed:
            raise self._refused(failed) from failed

    def _gather(self, data: bytes | memoryview) -> None:
        self._gathered.append(memoryview(data).cast("B"))
        self._gathered_bytes += self._gathered[-1].nbytes
        if self._gathered_bytes >= GATHERED_BYTES or len(self._gathered) >= GATHERED_MAX:
            try:
                self._write()
            except OSError as error:
                raise self._refused(error) from error

    def _write(self) -> None:
        """Write what was gathered; the system may take less than it is given."""
        self._reserve(LENGTH_BYTES + self._room + self._position)
        left, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if self._direct is not None:
            for piece in left:
                self._direct.write(piece)
            return
        while left:
            left = _behind(left, os.writev(self._file.fileno(), left))

    def _reserve(self, end: int) -> None:
        """Ask for disk space up to `end` and beyond; where that is refused, writing continues without it."""
        start, self._reserved = self._reserved, max(self._reserved, min(end + RESERVED_BYTES, self._bytes_max))
        if end > start and hasattr(os, "posix_fallocate"):
            with suppress(OSError):
                os.posix_fallocate(self._file.fileno(), start, self._reserved - start)

    def _finish(self) -> None:
        self._write()
        if self._direct is not None:
            self._direct.finish()
        self._file.truncate(LENGTH_BYTES + self._room + self._position)
        header = encode_placements(self._placed)
        self._file.seek(0)
        self._file.write(self._room.to_bytes(LENGTH_BYTES, "little") + header.ljust(self._room))

    def _refused(self, error: OSError) -> UnavailableError:
        return UnavailableError(f"{self._name}: could not be written: {error.strerror}")


def _direct(path: Path, start: int) -> DirectFile | None:
    """The way past the page cache; `None` where the system or the disk has none, as memory disks."""
    try:
        return DirectFile(path, start)
    except OSError:
        return None


def _behind(pieces: list[memoryview], taken: int) -> list[memoryview]:
    """What is left of the pieces behind their first bytes."""
    for number, piece in enumerate(pieces):
        if taken < piece.nbytes:
            return [piece[taken:], *pieces[number + 1 :]]
        taken -= piece.nbytes
    return []


def _header_bytes_max(specs: tuple[TensorSpec, ...], name_bytes: int) -> int:
    """The most bytes of a header for tensors of these specs, wherever they lie."""
    last = sum(spec.nbytes for spec in specs)
    size = len("{}") + sum(_entry_bytes(spec) for spec in specs) + len(specs) * (name_bytes + 2 * len(str(last)))
    return size + -size % ALIGNMENT


@lru_cache(maxsize=1 << 12)
def _entry_bytes(spec: TensorSpec) -> int:
    """The bytes of one entry without its name and its two offsets."""
    shape = ",".join(map(str, spec.shape))
    return len(f'"":{{"data_offsets":[,],"dtype":"{spec.dtype}","shape":[{shape}]}},')

"""Writes into a file past the system's page cache, as large files are better written.

A file of gigabytes pushes everything else out of the cache, and its writer pays for every page that the system has to
find: on a machine whose memory is in use, several times what hashing the same bytes takes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Final

BLOCK_BYTES: Final = 4 << 20
SECTOR_BYTES: Final = 4096
"""Disks take whole sectors, from memory that begins at such a boundary, as pages do."""


class DirectFile:
    """Takes the bytes of a file that is there, one after the other, from byte `start` on.

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

"""Writes an append-only log of canonical lines: appending hashes O(log n) nodes and writes one line."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from tallystick.commitments.digests import digest_from
from tallystick.commitments.tile_writer import TileWriter
from tallystick.commitments.tree import Frontier, leaf_hash
from tallystick.errors import UsageError
from tallystick.store.log import LINE_BYTES_MAX, OFFSET_BYTES, index_path, read_lines, tiles_folder
from tallystick.transcripts.claim import Log


class LogWriter:
    """Appends lines to a log file, its offsets and its tiles; continues a log that is already there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frontier = Frontier.empty()
        path.parent.mkdir(parents=True, exist_ok=True)
        mend_tail(path)
        self._tiles = TileWriter(tiles_folder(path))
        self._lines: IO[bytes] = path.open("ab", buffering=0)
        self._offsets: IO[bytes] = index_path(path).open("wb")
        self._position = 0
        for line in read_lines(path):
            self._note((line,))

    def append(self, line: bytes) -> None:
        """Write one line, leaving the lines before untouched.

        Raises:
            UsageError: the line is longer than a reader takes.
            OSError: the disk refuses it.
        """
        self._check(line)
        data = line + b"\n"
        if self._lines.write(data) != len(data):
            raise OSError(f"{self.path.name}: the last line could not be written whole")
        self._note((line,))

    def extend(self, lines: Sequence[bytes]) -> None:
        """As `append` for each of these lines, which are written at once; raises what `append` raises."""
        for line in lines:
            self._check(line)
        data = b"".join([line + b"\n" for line in lines])
        if self._lines.write(data) != len(data):
            raise OSError(f"{self.path.name}: the last lines could not be written whole")
        self._note(lines)

    def sync(self) -> None:
        """Make everything appended so far survive a loss of power."""
        os.fsync(self._lines.fileno())

    def close(self) -> Log:
        """Write the partial tiles, close the files, and return root and size; a second call only returns them."""
        try:
            if not self._lines.closed:
                self._tiles.finish(self.frontier.size)
        finally:
            self._lines.close()
            self._offsets.close()
        return Log(root=digest_from(self.frontier.root()), size=self.frontier.size)

    def _check(self, line: bytes) -> None:
        assert b"\n" not in line
        if len(line) > LINE_BYTES_MAX:
            raise UsageError(f"{self.path.name}: a record of {len(line)} bytes, more than the {LINE_BYTES_MAX} allowed")

    def _note(self, lines: Sequence[bytes]) -> None:
        leaves = list(map(leaf_hash, lines))
        self.frontier = self.frontier.extend(leaves)
        for line, leaf in zip(lines, leaves, strict=True):
            self._tiles.append(leaf)
            self._offsets.write(self._position.to_bytes(OFFSET_BYTES, "little"))
            self._position += len(line) + 1


@contextmanager
def appending(path: Path) -> Iterator[LogWriter]:
    """A log writer that is closed, tiles and all, whatever happens."""
    writer = LogWriter(path)
    try:
        yield writer
    finally:
        writer.close()


def cut_log(path: Path, size: int) -> Log:
    """Forget the lines behind the first `size`, write tiles and offsets anew, and return root and size."""
    end = sum(len(line) + 1 for line in islice(read_lines(path), size))
    with path.open("r+b") as file:
        file.truncate(end)
    shutil.rmtree(tiles_folder(path), ignore_errors=True)
    return LogWriter(path).close()


def mend_tail(path: Path) -> None:
    """Drop a last line that a crash left unfinished."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            whole = data.rfind(b"\n") + 1
        file.truncate(whole)

"""Append-only logs of canonical lines under an RFC 6962 root: written and read."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from tallystick.core.digests import (
    Frontier,
    Hash,
    check_inclusion,
    digest_bytes,
    digest_from,
    leaf_hash,
    prove_inclusion,
)
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import file_size
from tallystick.core.tiles import TileReader, TileWriter
from tallystick.formats.claims import Log

# Reads an append-only log of canonical lines under an RFC 6962 root.
#
# Opening one line reads that line and a few tiles.

LINE_BYTES_MAX = 1 << 20
OFFSET_BYTES = 8


def read_lines(path: Path, bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
    """The lines of a log without their line feeds; raises `MalformedError` at a truncated or endless line."""
    file_size(path)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(bytes_max + 1):
            if not line.endswith(b"\n"):
                raise MalformedError(f"{path.name}: line {number + 1} is truncated or longer than {bytes_max} bytes")
            yield line[:-1]
            number += 1


@dataclass(frozen=True)
class OpenedLine:
    """One line of a log with the proof that it stands at `index`."""

    index: int
    line: bytes
    proof: tuple[Hash, ...]

    def check(self, log: Log) -> None:
        """Raise `ProofError` unless this line is line `index` of `log`."""
        check_inclusion(list(self.proof), leaf_hash(self.line), self.index, log.size, Hash(digest_bytes(log.root)))


def open_line(path: Path, index: int, size: int) -> OpenedLine:
    """Line `index` of a log of `size` lines, with its inclusion proof from the tiles."""
    if not 0 <= index < size:
        raise ProofError(f"record {index} lies outside a log of {size} records")
    proof = prove_inclusion(TileReader(tiles_folder(path), size), index, size)
    return OpenedLine(index, line_at(path, index), tuple(proof))


def line_at(path: Path, index: int) -> bytes:
    """Line `index` of the log at `path`, found by its index file; raises what `open_line` raises of files."""
    return _line_from(path, _offset(path, index))


def _offset(path: Path, index: int) -> int:
    offsets = index_path(path)
    if not offsets.is_file():
        raise UnavailableError(f"{offsets.name}: not there; `tally fsck --repair` writes it anew")
    with offsets.open("rb") as file:
        file.seek(index * OFFSET_BYTES)
        entry = file.read(OFFSET_BYTES)
    if len(entry) != OFFSET_BYTES:
        raise MalformedError(f"{offsets.name}: ends before record {index}")
    return int.from_bytes(entry, "little")


def _line_from(path: Path, offset: int) -> bytes:
    size = file_size(path)
    with path.open("rb") as file:
        file.seek(min(offset, size))
        line = file.readline(LINE_BYTES_MAX + 1)
    if not line.endswith(b"\n"):
        raise MalformedError(f"{path.name}: no whole line starts at byte {offset}")
    return line[:-1]


def tiles_folder(path: Path) -> Path:
    """The folder of the tiles of the log at `path`."""
    return path.with_name("tiles") / path.stem


def index_path(path: Path) -> Path:
    """The file of line offsets, 8 bytes each, of the log at `path`."""
    return path.with_suffix(".index")


# Writes an append-only log of canonical lines: appending hashes O(log n) nodes and writes one line.


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

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
from typing import IO, Final

from tallystick.core.digests import (
    HASH_BYTES,
    Frontier,
    Hash,
    check_inclusion,
    digest_bytes,
    digest_from,
    leaf_hash,
    node_hash,
    prove_inclusion,
    tree_root,
)
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.files import file_size
from tallystick.formats.claims import Log

# Tree hashes in static files of 256 (C2SP tlog-tiles): written while a log grows, read to make proofs.

TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 1 << TILE_HEIGHT


def tile_path(level: int, index: int, width: int = TILE_WIDTH) -> str:
    """The path of a tile: its index in groups of three digits, all but the last with `x`; a partial tile adds a width.

    >>> tile_path(0, 1234067), tile_path(1, 2, 70)
    ('0/x001/x234/067', '1/002.p/70')
    """
    groups = [f"{index % 1000:03d}"]
    while index >= 1000:
        index //= 1000
        groups.insert(0, f"x{index % 1000:03d}")
    partial = "" if width == TILE_WIDTH else f".p/{width}"
    return f"{level}/{'/'.join(groups)}{partial}"


class TileReader:
    """Reads the tiles of a tree of `size` leaves; a `HashReader`.

    Raises `MalformedError` for a tile of the wrong length, `UnavailableError` for a missing one.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size
        self._cache: dict[tuple[int, int], bytes] = {}

    def hashes(self, level: int, start: int, count: int) -> list[Hash]:
        """The roots of complete subtrees of 2^`level` leaves."""
        if start < 0 or (start + count) << level > self._size:
            raise ProofError(f"the tree of {self._size} leaves has no {count} subtrees of level {level} at {start}")
        return [self._hash(level, index) for index in range(start, start + count)]

    def _hash(self, level: int, index: int) -> Hash:
        if level % TILE_HEIGHT:
            below = level - 1
            return node_hash(self._hash(below, 2 * index), self._hash(below, 2 * index + 1))
        tile, place = divmod(index, TILE_WIDTH)
        data = self._tile(level // TILE_HEIGHT, tile)
        return Hash(data[place * HASH_BYTES : (place + 1) * HASH_BYTES])

    def _tile(self, level: int, index: int) -> bytes:
        if (level, index) not in self._cache:
            self._cache[level, index] = self._read(level, index)
        return self._cache[level, index]

    def _read(self, level: int, index: int) -> bytes:
        width = min(TILE_WIDTH, (self._size >> TILE_HEIGHT * level) - index * TILE_WIDTH)
        for stored in (width, TILE_WIDTH):  # C2SP tlog-tiles: a partial tile may be deleted once the full one exists
            name = tile_path(level, index, stored)
            if not (self._folder / name).is_file():
                continue
            try:
                with (self._folder / name).open("rb") as file:
                    data = file.read(stored * HASH_BYTES + 1)
            except OSError as error:
                raise UnavailableError(f"tile {name}: {error.strerror}") from None
            if len(data) != stored * HASH_BYTES:
                raise MalformedError(f"tile {name}: {stored} hashes should stand there")
            return data[: width * HASH_BYTES]
        raise UnavailableError(f"tile {tile_path(level, index, width)} is missing")


class TileWriter:
    """Writes full tiles as leaves arrive, and the partial ones at the end. Holds one open tile a level."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: list[list[Hash]] = []
        self._done: list[int] = []

    def append(self, leaf: Hash) -> None:
        """Add one leaf."""
        self._add(0, leaf)

    def finish(self, size: int) -> None:
        """Write the partial tiles of the tree of `size` leaves."""
        assert size == self._size()
        for level, hashes in enumerate(self._open):
            if hashes:
                self._write(level, self._done[level], hashes)

    def _add(self, level: int, value: Hash) -> None:
        if level == len(self._open):
            self._open.append([])
            self._done.append(0)
        self._open[level].append(value)
        if len(self._open[level]) == TILE_WIDTH:
            full = self._open[level]
            self._write(level, self._done[level], full)
            self._open[level] = []
            self._done[level] += 1
            self._add(level + 1, tree_root(full))

    def _write(self, level: int, index: int, hashes: list[Hash]) -> None:
        path = self._folder / tile_path(level, index, len(hashes))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(hashes))

    def _size(self) -> int:
        return self._done[0] * TILE_WIDTH + len(self._open[0]) if self._open else 0


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
    offsets = index_path(path)
    if not offsets.is_file():
        raise UnavailableError(f"{offsets.name}: not there; `tally fsck --repair` writes it anew")
    with offsets.open("rb") as file:
        file.seek(index * OFFSET_BYTES)
        entry = file.read(OFFSET_BYTES)
    if len(entry) != OFFSET_BYTES:
        raise MalformedError(f"{offsets.name}: ends before record {index}")
    offset, size = int.from_bytes(entry, "little"), file_size(path)
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
        """Write one line, leaving the lines before untouched; raises what `extend` raises."""
        self.extend((line,))

    def extend(self, lines: Sequence[bytes]) -> None:
        """Write these lines at once, leaving the lines before untouched.

        Raises:
            UsageError: a line is longer than a reader takes.
            OSError: the disk refuses them.
        """
        for line in lines:
            assert b"\n" not in line
            if len(line) > LINE_BYTES_MAX:
                raise UsageError(
                    f"{self.path.name}: a record of {len(line)} bytes, more than the {LINE_BYTES_MAX} allowed"
                )
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

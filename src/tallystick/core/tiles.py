"""Tree hashes in static files of 256 (C2SP tlog-tiles): written while a log grows, read to make proofs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tallystick.core.digests import Hash, node_hash, tree_root
from tallystick.core.errors import MalformedError, ProofError, UnavailableError

TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 1 << TILE_HEIGHT
HASH_BYTES: Final = 32


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
            if (self._folder / name).is_file():
                return self._read_whole(name, stored)[: width * HASH_BYTES]
        raise UnavailableError(f"tile {tile_path(level, index, width)} is missing")

    def _read_whole(self, name: str, width: int) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                data = file.read(width * HASH_BYTES + 1)
        except OSError as error:
            raise UnavailableError(f"tile {name}: {error.strerror}") from None
        if len(data) != width * HASH_BYTES:
            raise MalformedError(f"tile {name}: {width} hashes should stand there")
        return data


# Tiles written as a log grows (C2SP tlog-tiles).


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

"""Tiles written as a log grows (C2SP tlog-tiles)."""

from __future__ import annotations

from pathlib import Path

from tallystick.commitments.tiles import TILE_WIDTH, tile_path
from tallystick.commitments.tree import Hash, tree_root


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

"""Sorts more rows than memory holds: sorted runs in files of a temporary folder, merged when they are read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from heapq import merge
from pathlib import Path
from typing import Any, Final

ROWS_IN_MEMORY: Final = 1 << 17
Row = list[Any]
"""Numbers, texts and lists of them; rows are ordered as lists are, so that what decides stands in front."""


class SortedRows(AbstractContextManager["SortedRows"]):
    """Takes rows in any order and gives them in ascending order, as often as asked."""

    def __init__(self, rows_in_memory: int = ROWS_IN_MEMORY) -> None:
        self._limit = rows_in_memory
        self._held: list[Row] = []
        self._folder = tempfile.TemporaryDirectory(prefix="tally-trace-")
        self._runs: list[Path] = []
        self.count = 0

    def add(self, row: Row) -> None:
        """Add one row."""
        self._held.append(row)
        self.count += 1
        if len(self._held) >= self._limit:
            self._spill()

    def __iter__(self) -> Iterator[Row]:
        """The rows in ascending order."""
        self._held.sort()
        return merge(*(_rows_of(path) for path in self._runs), iter(self._held))

    def __exit__(self, *_: object) -> None:
        """Remove the files."""
        self._folder.cleanup()

    def _spill(self) -> None:
        self._held.sort()
        path = Path(self._folder.name) / f"{len(self._runs)}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._held)
        self._runs.append(path)
        self._held = []


def _rows_of(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)

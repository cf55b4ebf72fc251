"""Labelled conversations in a file, written one after the other and read in any order."""

from __future__ import annotations

from array import array
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from tallystick.datasets.row_layout import Labelled

ITEM: Final = np.dtype("<i4")


class RowSpool:
    """Holds conversations in the order in which they are added; in memory it keeps 8 bytes of each."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._ends = file, array("q", [0])

    def add(self, each: Labelled) -> None:
        """Write one conversation behind the others."""
        self._file.write(np.concatenate([each.tokens, each.labels]).astype(ITEM).tobytes())
        self._ends.append(self._ends[-1] + each.tokens.size)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> Labelled:
        start, end = self._ends[number], self._ends[number + 1]
        self._file.seek(2 * ITEM.itemsize * start)
        held = np.frombuffer(self._file.read(2 * ITEM.itemsize * (end - start)), ITEM).astype(np.int64)
        return Labelled(held[: end - start], held[end - start :])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each conversation."""
        ends = np.array(self._ends, np.int64)
        return ends[1:] - ends[:-1]

"""The logits of one row in descending order; filters are decided by rank."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ranks:
    """Logits minus the largest, F64[V]; −∞ for NaN and −∞, but not all are −∞. Rank 0 is the largest."""

    logits: Reals

    def __len__(self) -> int:
        return len(self.logits)

    def at(self, rank: int) -> float:
        """The logit of a rank."""
        return self._rising[-1 - rank]

    def above(self, x: float) -> int:
        """How many logits are larger."""
        return len(self) - bisect_right(self._rising, x)

    def at_least(self, x: float) -> int:
        """How many logits are as large or larger."""
        return len(self) - bisect_left(self._rising, x)

    @cached_property
    def falling(self) -> Reals:
        """The logits by rank."""
        return np.sort(self.logits)[::-1]

    @cached_property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The tokens by rank; equal ones in any order."""
        return np.argsort(self.logits)[::-1]

    @cached_property
    def _rising(self) -> list[float]:
        """Ascending logits as a list: reading an element is ten times faster than from an array."""
        rising: list[float] = self.falling[::-1].tolist()
        return rising

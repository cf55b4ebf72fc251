"""The rows of all answers by one producer of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tallystick.core.safetensors import read_state


@dataclass(frozen=True)
class Computed:
    """The rows of all answers by one producer, one model and one dtype, one answer after the other."""

    rows: Mapping[int, npt.NDArray[np.float32]]
    counts: tuple[int, ...]

    @classmethod
    def read(cls, path: Path, counts: Sequence[int]) -> Computed:
        """What a process of the study has written."""
        rows = {int(name): tensor.array() for name, tensor in read_state(path).items()}
        return cls(dict(sorted(rows.items())), tuple(counts))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of every answer."""
        return tuple(int(start) for start in np.cumsum((0, *self.counts[:-1])))

    def answer(self, number: int) -> dict[int, npt.NDArray[np.float32]]:
        """The rows [tokens, d] of one answer by layer."""
        start = self.starts[number]
        return {layer: each[start : start + self.counts[number]] for layer, each in self.rows.items()}

"""Samples: what a batch of indices stands for, in arrays that a training step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tallystick.datasets.order import Indices
from tallystick.errors import MalformedError

Arrays = dict[str, NDArray[Any]]


class TokenRow(Protocol):
    """A row of tokens, in one array or in several."""

    @property
    def size(self) -> int:
        """The number of tokens."""
        ...

    def __getitem__(self, places: Indices, /) -> NDArray[Any]:
        """The tokens at `places`, in the shape of `places`."""
        ...


class Dataset(Protocol):
    """Samples that are numbered from 0."""

    @property
    def count(self) -> int:
        """The number of samples."""
        ...

    def batch(self, indices: Indices) -> Arrays:
        """The samples of `indices`, stacked in their order."""
        ...


@dataclass(frozen=True, eq=False)
class TokenDataset:
    """Windows of `sequence` tokens, each with the tokens one place further as its targets."""

    tokens: TokenRow
    sequence: int

    def __post_init__(self) -> None:
        assert self.sequence >= 1

    @property
    def count(self) -> int:
        """The number of windows: (T - 1) // sequence."""
        return max(self.tokens.size - 1, 0) // self.sequence

    def batch(self, indices: Indices) -> Arrays:
        """`inputs` and `targets`, int64[batch, sequence] each; raises `MalformedError` outside the data."""
        check_indices(indices, self.count)
        places = indices[:, np.newaxis] * self.sequence + np.arange(self.sequence)
        return {
            "inputs": self.tokens[places].astype(np.int64),
            "targets": self.tokens[places + 1].astype(np.int64),
        }


@dataclass(frozen=True, eq=False)
class ExampleDataset:
    """Images with their labels."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(self.labels)

    def batch(self, indices: Indices) -> Arrays:
        """`images` float32[batch, …] and `labels` int64[batch]; raises `MalformedError` outside the data."""
        check_indices(indices, self.count)
        return {"images": self.images[indices], "labels": self.labels[indices]}


def check_indices(indices: Indices, count: int) -> None:
    """Raise `MalformedError` unless every index names a sample; a negative one would wrap around."""
    outside = indices[(indices < 0) | (indices >= count)]
    if outside.size:
        raise MalformedError(f"sample {outside[0]} does not exist among {count}")

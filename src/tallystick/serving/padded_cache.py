"""Keys and values of sequences of different lengths in one batch, padded on the left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tallystick.errors import UnavailableError

Layer = tuple[torch.Tensor, torch.Tensor]


class PaddedCache:
    """A batch of sequences that grows, loses rows and takes in new ones between passes.

    `lengths` counts the tokens held of each sequence. `cache` is what a model of transformers reads and extends: per
    layer, keys and values [rows, heads, longest, head width], each sequence at the end of its row.
    """

    def __init__(self) -> None:
        self.cache: Any = DynamicCache()
        self.lengths: list[int] = []

    def join(self, prefilled: Sequence[Any], lengths: Sequence[int]) -> None:
        """Take in sequences, each from a cache of its own with one row, as the last rows."""
        parts = [*([_layers(self.cache)] if self.lengths else []), *(_layers(each) for each in prefilled)]
        self.lengths += lengths
        longest = max(self.lengths)
        self.cache = DynamicCache([_stacked(same_layer, longest) for same_layer in zip(*parts, strict=True)])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep `rows`, in that order, and drop the others and the padding that no row needs any more."""
        before = max(self.lengths, default=0)
        self.lengths = [self.lengths[row] for row in rows]
        if not rows:
            self.cache = DynamicCache()
            return
        spare = before - max(self.lengths)
        self.cache = DynamicCache(
            [(keys[list(rows), :, spare:], values[list(rows), :, spare:]) for keys, values in _layers(self.cache)]
        )

    def next_positions(self, device: str) -> torch.Tensor:
        """The place of each sequence's next token: I64 [rows, 1]."""
        return torch.tensor(self.lengths, device=device)[:, None]

    def next_mask(self, device: str) -> torch.Tensor:
        """Which places are no padding once every sequence has one token more: I64 [rows, longest + 1]."""
        longest = max(self.lengths)
        return (torch.arange(longest + 1, device=device) >= longest - self.next_positions(device)).long()

    def grow(self) -> None:
        """Note that a pass has added one token to every sequence."""
        self.lengths = [length + 1 for length in self.lengths]


def check_cache(cache: Any) -> None:
    """Raise `UnavailableError` unless every layer keeps all keys and values, so that rows can be padded and joined."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer or not layer.is_initialized:
            raise UnavailableError(f"layer {number}: {type(layer).__name__} cannot be batched with other sequences")


def _layers(cache: Any) -> list[Layer]:
    return [(layer.keys, layer.values) for layer in cache.layers]


def _stacked(parts: Sequence[Layer], longest: int) -> Layer:
    keys, values = (torch.cat([_padded(part[which], longest) for part in parts]) for which in (0, 1))
    return keys, values


def _padded(states: torch.Tensor, longest: int) -> torch.Tensor:
    return pad(states, (0, 0, longest - states.shape[-2], 0))

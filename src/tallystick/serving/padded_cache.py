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
    """The KV cache of a batch; between forward passes, rows can be removed and added.

    `lengths` counts the tokens of each sequence. `cache` is what a model of transformers reads and extends: per layer,
    keys and values [rows, heads, longest, head width], each sequence at the end of its row.
    """

    def __init__(self) -> None:
        self.cache: Any = DynamicCache()
        self.lengths: list[int] = []

    def join(self, prefilled: Sequence[Any], lengths: Sequence[int]) -> None:
        """Append sequences as the last rows; each comes from its own cache with one row."""
        parts = [*([_layers(self.cache)] if self.lengths else []), *(_layers(each) for each in prefilled)]
        self.lengths += lengths
        longest = max(self.lengths)
        self.cache = DynamicCache([_stacked(same_layer, longest) for same_layer in zip(*parts, strict=True)])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep `rows` in that order; drop the other rows and the padding that no row needs any more."""
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
        """The position of each sequence's next token: I64 [rows, 1]."""
        return torch.tensor(self.lengths, device=device)[:, None]

    def next_mask(self, device: str) -> torch.Tensor:
        """The attention mask of the next pass, 1 where there is a token and 0 for padding: I64 [rows, longest + 1]."""
        longest = max(self.lengths)
        return (torch.arange(longest + 1, device=device) >= longest - self.next_positions(device)).long()

    def grow(self) -> None:
        """Count the token that a forward pass has added to every sequence."""
        self.lengths = [length + 1 for length in self.lengths]


def check_cache(cache: Any) -> None:
    """Raise `UnavailableError` unless every layer keeps all keys and values, so that rows can be padded and joined."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer or not layer.is_initialized:
            raise UnavailableError(f"layer {number}: {type(layer).__name__} cannot be batched with other sequences")


def _layers(cache: Any) -> list[Layer]:
    return [(layer.keys, layer.values) for layer in cache.layers]


def _stacked(parts: Sequence[Layer], longest: int) -> Layer:
    keys, values = (
        torch.cat([pad(part[which], (0, 0, longest - part[which].shape[-2], 0)) for part in parts]) for which in (0, 1)
    )
    return keys, values

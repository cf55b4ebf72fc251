"""The cache of keys and values kept with fewer bits than it was computed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def quantised_cache(bits: int) -> Callable[[Any], None]:
    """Round the newest entries of a cache to 2ᵇⁱᵗˢ − 1 levels for each head and token, after every step."""
    seen = 0

    def round_new_entries(cache: Any) -> None:
        nonlocal seen
        for layer in cache.layers:
            for entries in (layer.keys, layer.values):
                entries[:, :, seen:] = _rounded(entries[:, :, seen:], bits)
        seen = cache.get_seq_length()

    return round_new_entries


def _rounded(values: Any, bits: int) -> Any:
    scale = values.abs().amax(-1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
    return (values / scale).round() * scale

"""An answer cut short, to save its computation."""

from __future__ import annotations

from collections.abc import Sequence


def truncate(answer: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens."""
    return list(answer[:count])

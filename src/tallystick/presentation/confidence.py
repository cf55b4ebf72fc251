"""What a sample in which nothing was wrong excludes about the whole, at 95 % confidence."""

from __future__ import annotations

from typing import Final

CONFIDENCE: Final = 0.95
ROUNDING: Final = 1e-12
"""A chance of 5 % up to rounding is not below 5 %."""


def excluded_from(total: int, drawn: int, confidence: float = CONFIDENCE) -> int:
    """The least number of bad units among `total` that is excluded: fewer are bad, at that confidence.

    With b bad units a sample of `drawn` without replacement misses all of them with probability
    C(total − b, drawn) / C(total, drawn). Excluded is each b for which this is below 1 − confidence. The bound is
    exact (T. Wright, Exact Confidence Bounds when Sampling from Small Finite Universes, Springer 1991, doi
    10.1007/978-1-4612-3140-0). It is `total` + 1 where nothing is excluded, not even that every unit is bad.

    >>> excluded_from(120, 8), excluded_from(10**6, 16), excluded_from(5, 5), excluded_from(5, 0)
    (37, 170749, 1, 6)
    """
    risk = (1 - confidence) * (1 - ROUNDING)
    low, high = 1, total + 1  # a sample misses more bad units with a smaller chance
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _misses_below(risk, total, drawn, middle) else (middle + 1, high)
    return low


def _misses_below(risk: float, total: int, drawn: int, bad: int) -> bool:
    """Whether C(total − bad, drawn) / C(total, drawn) is below `risk`; `drawn` and `bad` may change places."""
    few, many = sorted((drawn, bad))
    missed = 1.0
    for place in range(few):
        missed *= max(0, total - many - place) / (total - place)
        if missed < risk:
            return True
    return False

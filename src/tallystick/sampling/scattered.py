"""Words of a Philox stream at scattered counters, many at once.

They equal the words of `commitments.words`, which draws consecutive words; a test compares both.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.commitments.philox import MULTIPLIERS, ROUNDS, WEYL, WORDS_PER_BLOCK
from tallystick.operators.tally.keys import VOCABULARY_BITS
from tallystick.sampling.stream import seed_words

Words = npt.NDArray[np.uint64]

AT_ONCE: Final = 8192
"""Words per batch, so that the arrays stay in the processor's cache."""
HALF: Final = np.uint64(32)
LOWER: Final = np.uint64(0xFFFFFFFF)


def words_at(seed: int, positions: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The word of each (position, vocabulary index), I64 with the bits of the unsigned words."""
    places = (positions.astype(np.uint64) << np.uint64(VOCABULARY_BITS)) + tokens.astype(np.uint64)
    key = seed_words(seed).view(np.uint64)
    parts = [_words(key, places[start : start + AT_ONCE]) for start in range(0, len(places), AT_ONCE)]
    return np.concatenate(parts).view(np.int64) if parts else np.zeros(0, np.int64)


def _words(key: Words, places: Words) -> Words:
    lanes = _philox(places // np.uint64(WORDS_PER_BLOCK), key)
    return np.choose((places % np.uint64(WORDS_PER_BLOCK)).astype(np.intp), lanes)


def _philox(counter: Words, key: Words) -> tuple[Words, Words, Words, Words]:
    zero = np.zeros_like(counter)
    c0, c1, c2, c3 = counter, zero, zero, zero
    keys = [
        [np.uint64((int(word) + round_ * step) % 2**64) for round_ in range(ROUNDS)]
        for word, step in zip(key, WEYL, strict=True)
    ]
    for low, high in zip(*keys, strict=True):
        upper0, lower0 = _wide_product(c0, MULTIPLIERS[0])
        upper1, lower1 = _wide_product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = upper1 ^ c1 ^ low, lower1, upper0 ^ c3 ^ high, lower0
    return c0, c1, c2, c3


def _wide_product(x: Words, factor: int) -> tuple[Words, Words]:
    """The upper and the lower 64 bits of x · factor, computed from 32-bit halves."""
    high, low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    x_high, x_low = x >> HALF, x & LOWER
    one, other = x_high * low, x_low * high
    middle = ((x_low * low) >> HALF) + (one & LOWER) + (other & LOWER)
    return x_high * high + (one >> HALF) + (other >> HALF) + (middle >> HALF), x * np.uint64(factor)

"""Random words that are the same on every machine: Philox4x64-10, addressed by key and counter.

Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (SC 2011). This file and the spec define how the words
become samples. The sampling methods of a library's generator are not used, because they may change between releases.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

WORDS_PER_BLOCK: Final = 4
KEY_BYTES: Final = 16
ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL: Final = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
"""The increment of the two key words in each round."""


def words(key: bytes, count: int, start: int = 0) -> npt.NDArray[np.uint64]:
    """Words `start` … `start + count − 1` of the stream of `key`, uint64 [count].

    Args:
        key: at least 16 bytes; the first 16 are the two little-endian words of the Philox key.
        count: how many words.
        start: the first word; block `start // 4` has the 256-bit counter `start // 4`.
    """
    assert len(key) >= KEY_BYTES
    assert min(count, start) >= 0
    first, skipped = divmod(start, WORDS_PER_BLOCK)
    pair = np.frombuffer(key[:KEY_BYTES], "<u8").astype(np.uint64)
    counter = (first - 1) % 2**256  # NumPy increments the counter before it makes a block
    counter_words = np.array([counter >> 64 * place & (2**64 - 1) for place in range(4)], np.uint64)
    generator = np.random.Philox(key=pair, counter=counter_words)
    return generator.random_raw(skipped + count)[skipped:]


def permutation(key: bytes, count: int) -> npt.NDArray[np.int64]:
    """The numbers 0 … `count − 1` sorted by their words, int64; numbers with equal words stay in ascending order."""
    return np.argsort(words(key, count), kind="stable").astype(np.int64, copy=False)


def sample(key: bytes, population: int, count: int) -> npt.NDArray[np.int64]:
    """`count` distinct numbers below `population`, int64, in ascending order."""
    assert 0 <= count <= population
    return np.sort(permutation(key, population)[:count])

"""Random words that are the same on every machine: Philox4x64-10, addressed by key and counter.

Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (SC 2011). What is drawn from the words is
defined here and in the spec, not by a library's generator, whose methods may change between releases.
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
"""What two words of a key grow by in each round."""


def words(key: bytes, count: int, start: int = 0) -> npt.NDArray[np.uint64]:
    """The `count` words from word `start` on of the stream of `key`, uint64.

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
    generator = np.random.Philox(key=pair, counter=_counter_words(counter))
    return generator.random_raw(skipped + count)[skipped:]


def permutation(key: bytes, count: int) -> npt.NDArray[np.int64]:
    """The numbers below `count` in the order of their words; equal words keep their order."""
    return np.argsort(words(key, count), kind="stable").astype(np.int64)


def sample(key: bytes, population: int, count: int) -> npt.NDArray[np.int64]:
    """`count` distinct numbers below `population`, in ascending order."""
    assert 0 <= count <= population
    return np.sort(permutation(key, population)[:count])


def _counter_words(counter: int) -> npt.NDArray[np.uint64]:
    return np.array([counter >> 64 * place & (2**64 - 1) for place in range(4)], np.uint64)

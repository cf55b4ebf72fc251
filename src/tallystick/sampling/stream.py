"""The random words of a choice: one per seed, position and vocabulary index.

The Philox key is the first 16 bytes of digest("sampler", [seed]). Vocabulary index v uses word position·2²⁰ + v of the
stream. The form `cdf` uses the word of index 0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import words
from tallystick.operators.tally.keys import VOCABULARY_BITS

KEY_BYTES: Final = 16


@lru_cache(maxsize=1024)
def stream_key(seed: int) -> bytes:
    """The 16 bytes of the Philox key."""
    return digest_bytes(digest("sampler", encode([seed])))[:KEY_BYTES]


def seed_words(seed: int) -> npt.NDArray[np.int64]:
    """The key as graphs hold it: I64[2], two little-endian words."""
    return np.frombuffer(stream_key(seed), "<i8").astype(np.int64)


def position_words(seed: int, position: int, count: int) -> npt.NDArray[np.int64]:
    """The words of vocabulary indices 0 to `count` − 1 at one position, I64 with the bits of the unsigned words."""
    return words(stream_key(seed), count, position << VOCABULARY_BITS).view(np.int64)

"""Random words that are the same on every machine: Philox4x64-10 in a stream or at scattered counters, and MT19937."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.errors import MalformedError
from tallystick.programs.operators.tally.fixed_point import VOCABULARY_BITS

# Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (SC 2011). This file and the spec define how the words
# become samples. The sampling methods of a library's generator are not used, because they may change between releases.

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


# The words of MT19937, the generator of PyTorch on a CPU, as a function of a state that a graph can hold.
#
# Matsumoto and Nishimura, *Mersenne Twister* (ACM TOMACS 8, 1998), with the seeding of their revision of 2002. A state
# is int64 [625]: the 624 words of a block, and the place of the next word in it; 624 means that a new block is due.

BLOCK: Final = 624
STATE_SIDE: Final = BLOCK + 1
GOES_ON: Final = -1
"""In the place of a seed: the generator goes on from its state."""
BLOCKS_AT_ONCE: Final = 1024
SKIPPED_MAX: Final = 1 << 30
"""How many words a move may skip: some seconds of work."""
State = npt.NDArray[np.int64]


def seeded(seed: int) -> State:
    """The state after `torch.manual_seed(seed)`, of which PyTorch uses the lower 32 bits."""
    generator = np.random.MT19937()
    generator._legacy_seeding(seed & 0xFFFFFFFF)  # NumPy's own classes seed otherwise than the authors
    return _state_of(generator)


def draw(state: State, seed: int, skipped: int, count: int) -> tuple[State, State]:
    """The `count` words behind `skipped` others, int64, and the state after them.

    They follow `state`, or the state of a `seed` that is not `GOES_ON`. Raises `MalformedError` for numbers that are no
    state, no seed, or that skip more than `SKIPPED_MAX` words.
    """
    words, place = np.asarray(state[:BLOCK]), int(state[BLOCK])
    if not (0 <= place <= BLOCK and np.all((words >= 0) & (words < 1 << 32))):
        raise MalformedError("the state of a generator holds other numbers than words and a place")
    if not (GOES_ON <= seed < 1 << 32 and 0 <= skipped <= SKIPPED_MAX):
        raise MalformedError(f"a generator cannot be moved to seed {seed} and {skipped} words on")
    generator = _generator(state if seed == GOES_ON else seeded(seed))
    while skipped > 0:
        skipped -= len(generator.random_raw(min(skipped, 1 << 20)))
    drawn = generator.random_raw(count).astype(np.int64)
    return drawn, _state_of(generator)


def distance(before: State, after: State, most: int) -> int | None:
    """How many words lie between two states of one stream; `None` for more than `most`, or for another stream."""
    start, gap = int(before[BLOCK]), int(after[BLOCK] - before[BLOCK])
    if gap >= 0 and np.array_equal(before[:BLOCK], after[:BLOCK]):
        return gap if gap <= most else None
    wanted = _generator(np.append(after[:BLOCK], 0)).random_raw(BLOCK)
    generator = _generator(before)
    generator.random_raw(BLOCK - start, output=False)
    gap = BLOCK - start + int(after[BLOCK])  # if the next block is the one wanted
    count = 1
    while gap <= most:
        blocks = generator.random_raw(count * BLOCK).reshape(-1, BLOCK)
        for place in np.flatnonzero(blocks[:, 0] == wanted[0]):
            if np.array_equal(blocks[place], wanted):
                words_apart = gap + BLOCK * int(place)
                return words_apart if words_apart <= most else None
        gap, count = gap + blocks.size, min(2 * count, BLOCKS_AT_ONCE)
    return None


def _generator(state: State) -> np.random.MT19937:
    generator = np.random.MT19937()
    generator.state = {
        "bit_generator": "MT19937",
        "state": {"key": state[:BLOCK].astype(np.uint32), "pos": int(state[BLOCK])},
    }
    return generator


def _state_of(generator: np.random.MT19937) -> State:
    held = generator.state["state"]
    return np.append(held["key"].astype(np.int64), np.int64(held["pos"]))


# The random words of a choice: one per seed, position and vocabulary index.
#
# The Philox key is the first 16 bytes of digest("sampler", [seed]). Vocabulary index v uses word position·2²⁰ + v of
# the stream. The form `cdf` uses the word of index 0.


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


# Words of a Philox stream at scattered counters, many at once.
#
# They equal the words of `commitments.words`, which draws consecutive words; a test compares both.

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

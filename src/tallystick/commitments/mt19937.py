"""The words of MT19937, the generator of PyTorch on a CPU, as a function of a state that a graph can hold.

Matsumoto and Nishimura, *Mersenne Twister* (ACM TOMACS 8, 1998), with the seeding of their revision of 2002. A state is
int64 [625]: the 624 words of a block, and the place of the next word in it; 624 means that a new block is due.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError

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
                found = gap + BLOCK * int(place)
                return found if found <= most else None
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

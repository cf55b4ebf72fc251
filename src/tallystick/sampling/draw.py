"""One draw from the keys of one row: the Gumbel form, which evaluates few tokens exactly, and the form by sums."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.operators.tally import fixed
from tallystick.operators.tally.keys import MASKED, WORD_BITS
from tallystick.sampling.plain import ARRAYS, NUMBERS

Keys = npt.NDArray[np.int64]
NONE_LEFT: Final = -1
EXPONENT_BIAS: Final = 1023
SIGNIFICAND_BITS: Final = 52
FAR_BELOW: Final = -900 * fixed.ONE
ALLOWANCE: Final = 1 + 2.0**-20
"""A factor far above the rounding of float64 and the error of a noise key."""
SCALARS_MAX: Final = 8


def draw_largest(keys: Keys) -> int:
    """The first of the largest keys, −1 where all are masked."""
    token = int(np.argmax(keys))
    return token if keys[token] != MASKED else NONE_LEFT


def draw_gumbel(keys: Keys, words: Keys) -> int:
    """The token of the largest key + `fixed.gumbel(word)`, −1 where all are masked.

    For t = v / 2⁵³ the noise is at most log₂(ln 2 / t). So a token reaches a score s only if t ≤ 2^(key − s)·ln 2.
    The exact noise is computed for those tokens only. They are few where s is the score of a token whose t / 2^key is
    nearly the smallest.
    """
    tokens = np.flatnonzero(keys != MASKED)
    if not len(tokens):
        return NONE_LEFT
    keys, words = keys[tokens], words[tokens]
    ratios = fixed.uniform(ARRAYS, words) / at_least_exp2(np.maximum(keys, FAR_BELOW)).view(np.float64)
    likely = int(np.argmin(ratios))
    score = int(keys[likely]) + fixed.gumbel(NUMBERS, int(words[likely]))
    able = np.flatnonzero(ratios <= reach(score))
    scores = scores_of(keys[able], words[able])
    return int(tokens[able[np.argmax(scores)]])


def draw_by_sums(keys: Keys, word: int) -> int:
    """The first token whose running sum of weights exceeds ⌊word·total / 2⁶²⌋, −1 where nothing has weight."""
    sums = np.cumsum(fixed.exp2(ARRAYS, keys))
    total = int(sums[-1])
    if not total:
        return NONE_LEFT
    return int(np.searchsorted(sums, threshold(word, total), side="right"))


def threshold(word: int, total: int) -> int:
    """⌊leading 62 bits of the word · total / 2⁶²⌋, a number below `total`."""
    return ((word % 2**64) >> (64 - WORD_BITS)) * total >> WORD_BITS


def reach(score: int) -> float:
    """The largest v / 2^key with which a token can reach `score`."""
    return math.exp2(fixed.UNIFORM_BITS - score / fixed.ONE) * math.log(2) * ALLOWANCE


def noisy(keys: Keys, words: Keys) -> Keys:
    """Keys plus noise; masked keys stay masked."""
    return np.where(keys == MASKED, keys, keys + fixed.gumbel(ARRAYS, words))


def scores_of(keys: Keys, words: Keys) -> Keys:
    """Keys, none of them masked, plus their noise."""
    is_few = len(keys) <= SCALARS_MAX
    noise = [fixed.gumbel(NUMBERS, word) for word in words.tolist()] if is_few else fixed.gumbel(ARRAYS, words)
    return keys + np.asarray(noise, np.int64)


def at_least_exp2(keys: Any) -> Any:
    """The bits of a float64 from 2^key to 1.07·2^key, for keys of at least −900: 2ⁿ·(1 + f) where key = n + f."""
    return (keys + EXPONENT_BIAS * fixed.ONE) << (SIGNIFICAND_BITS - fixed.KEY_BITS)

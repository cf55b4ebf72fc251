"""The keys of one row of logits, the filters on them, and one draw, in integer operations."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally import fixed_point
from tallystick.programs.operators.tally.fixed_point import (
    FINITE,
    LOWEST,
    MASKED,
    NORMAL,
    SHARE_BITS,
    WORD_BITS,
    logit_scale,
    penalty_factors,
    share_of,
)

if TYPE_CHECKING:
    from tallystick.programs.operators.algebra import Comparison


# The integer operations of the fixed-point functions on NumPy arrays, and on Python's own numbers.


@dataclass(frozen=True)
class Plain:
    """`Integers` by the operators of Python; `where` is that of the kind of number in use."""

    where: Callable[[Any, Any, Any], Any]

    add = staticmethod(operator.add)
    sub = staticmethod(operator.sub)
    mul = staticmethod(operator.mul)
    shift_right = staticmethod(operator.rshift)

    def compare(self, x: Any, y: Any, how: Comparison, /) -> Any:
        """BOOL."""
        return getattr(operator, how)(x, y)


ARRAYS: Final = Plain(np.where)
NUMBERS: Final = Plain(lambda condition, x, y: x if condition else y)


Logits = npt.NDArray[np.float32]
Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# The logits of one row in descending order; filters are decided by rank.


@dataclass(frozen=True)
class Ranks:
    """Logits minus the largest, F64[V]; −∞ for NaN and −∞, but not all are −∞. Rank 0 is the largest."""

    logits: Reals

    def __len__(self) -> int:
        return len(self.logits)

    def at(self, rank: int) -> float:
        """The logit of a rank."""
        return self._rising[-1 - rank]

    def above(self, x: float) -> int:
        """How many logits are larger."""
        return len(self) - bisect_right(self._rising, x)

    def at_least(self, x: float) -> int:
        """How many logits are as large or larger."""
        return len(self) - bisect_left(self._rising, x)

    @cached_property
    def falling(self) -> Reals:
        """The logits by rank."""
        return np.sort(self.logits)[::-1]

    @cached_property
    def tokens(self) -> Integers:
        """The tokens by rank; equal ones in any order."""
        return np.argsort(self.logits)[::-1]

    @cached_property
    def _rising(self) -> list[float]:
        """Ascending logits as a list: reading an element is ten times faster than from an array."""
        rising: list[float] = self.falling[::-1].tolist()
        return rising


# Keys of one row of logits and the filters on them: `programs.operators.tally.sampling` in plain NumPy.
#
# Results equal those of the operators bit for bit; a test compares them.

Keys = Integers


def relative_logits(logits: Logits, sampler: Sampler, history: Sequence[int]) -> Reals:
    """Logits after the penalty minus the largest, F64[V]; −∞ for NaN and −∞. `history` holds token ids below V."""
    x = penalized(plain_logits(logits), sampler.repetition_penalty, history)
    largest = x.max()
    return x if largest == -math.inf else x - largest


def keys_at(relative: Reals, sampler: Sampler) -> Keys:
    """The keys of `relative_logits` at the sampler's temperature."""
    keys: Keys = np.maximum(np.floor(relative * logit_scale(sampler.temperature)), LOWEST).astype(np.int64)
    keys[relative == -math.inf] = MASKED
    return keys


def keys_of(logits: Logits, sampler: Sampler, history: Sequence[int]) -> Keys:
    """The keys of F32[V] logits after penalty and temperature; `history` holds token ids below V."""
    return keys_at(relative_logits(logits, sampler, history), sampler)


def filtered(keys: Keys, sampler: Sampler) -> Keys:
    """Keys after top-k, top-p and min-p, in this order; removed tokens are `MASKED`. Greedy choice removes none."""
    if sampler.is_greedy:
        return keys
    keys = _keep_top_k(keys, sampler.top_k)
    keys = _keep_top_p(keys, share_of(sampler.top_p, "top_p"))
    return _keep_min_p(keys, share_of(sampler.min_p, "min_p"))


def plain_logits(logits: Logits) -> Reals:
    """F64 without NaN, +∞ and numbers that some devices flush to 0."""
    x = np.minimum(logits.astype(np.float64), FINITE)
    x[np.abs(x) < NORMAL] = 0.0
    x[np.isnan(x)] = -math.inf
    return x


def penalized(x: Reals, penalty: float, history: Sequence[int]) -> Reals:
    """`plain_logits` F64[V] after the repetition penalty, in place; `history` holds token ids below V."""
    if penalty != 1.0 and len(history):
        above, below = penalty_factors(penalty)
        seen = np.zeros(len(x), np.bool_)
        seen[np.asarray(history, np.int64)] = True
        x[seen] *= np.where(x[seen] > 0, above, below)
        x[np.abs(x) < NORMAL] = 0.0
    return x


def _keep_top_k(keys: Keys, k: int) -> Keys:
    if k == 0 or k >= len(keys):
        return keys
    edge = np.partition(keys, len(keys) - k)[len(keys) - k]
    return _kept_from(keys, keys, edge, k - int((keys > edge).sum()))


def _keep_top_p(keys: Keys, share: int) -> Keys:
    if share == 1 << SHARE_BITS:
        return keys
    weights = fixed_point.exp2(ARRAYS, keys)
    total = int(weights.sum())
    target = max(_part_of(total, share), 1)
    # All tokens lighter than this weigh less than total − target together: top-p removes them, so skip sorting them.
    heavy = np.sort(weights[weights >= (total - target) // len(keys)])[::-1]
    if not total:
        return keys
    sums = np.cumsum(heavy)
    last = int(np.searchsorted(sums, target))
    edge = heavy[last]
    above = int(np.searchsorted(-heavy, -edge))
    return _kept_from(keys, weights, edge, last + 1 - above)


def _keep_min_p(keys: Keys, share: int) -> Keys:
    if share == 0:
        return keys
    weights = fixed_point.exp2(ARRAYS, keys)
    return np.where(weights >= _part_of(int(weights.max()), share), keys, MASKED)


def _kept_from(keys: Keys, order: Keys, edge: int, equal: int) -> Keys:
    """`keys` where `order` is above the edge, and the first `equal` where it is at the edge."""
    kept = np.where(order > edge, keys, MASKED)
    first = np.flatnonzero(order == edge)[:equal]
    kept[first] = keys[first]
    return kept


def _part_of(whole: int, share: int) -> int:
    """⌈whole·share / 2³⁰⌉."""
    return -(-whole * share >> SHARE_BITS)


# One draw from the keys of one row: the Gumbel form, which evaluates few tokens exactly, and the form by sums.

NONE_LEFT: Final = -1
EXPONENT_BIAS: Final = 1023
SIGNIFICAND_BITS: Final = 52
FAR_BELOW: Final = -900 * fixed_point.ONE
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
    ratios = fixed_point.uniform(ARRAYS, words) / at_least_exp2(np.maximum(keys, FAR_BELOW)).view(np.float64)
    likely = int(np.argmin(ratios))
    score = int(keys[likely]) + fixed_point.gumbel(NUMBERS, int(words[likely]))
    able = np.flatnonzero(ratios <= reach(score))
    scores = scores_of(keys[able], words[able])
    return int(tokens[able[np.argmax(scores)]])


def draw_by_sums(keys: Keys, word: int) -> int:
    """The first token whose running sum of weights exceeds ⌊word·total / 2⁶²⌋, −1 where nothing has weight."""
    sums = np.cumsum(fixed_point.exp2(ARRAYS, keys))
    total = int(sums[-1])
    if not total:
        return NONE_LEFT
    return int(np.searchsorted(sums, threshold(word, total), side="right"))


def threshold(word: int, total: int) -> int:
    """⌊leading 62 bits of the word · total / 2⁶²⌋, a number below `total`."""
    return ((word % 2**64) >> (64 - WORD_BITS)) * total >> WORD_BITS


def reach(score: int) -> float:
    """The largest v / 2^key with which a token can reach `score`."""
    return math.exp2(fixed_point.UNIFORM_BITS - score / fixed_point.ONE) * math.log(2) * ALLOWANCE


def scores_of(keys: Keys, words: Keys) -> Keys:
    """Keys, none of them masked, plus their noise."""
    is_few = len(keys) <= SCALARS_MAX
    noise = (
        [fixed_point.gumbel(NUMBERS, word) for word in words.tolist()] if is_few else fixed_point.gumbel(ARRAYS, words)
    )
    return keys + np.asarray(noise, np.int64)


def at_least_exp2(keys: Any) -> Any:
    """The bits of a float64 from 2^key to 1.07·2^key, for keys of at least −900: 2ⁿ·(1 + f) where key = n + f."""
    return (keys + EXPONENT_BIAS * fixed_point.ONE) << (SIGNIFICAND_BITS - fixed_point.KEY_BITS)

"""Keys of one row of logits and the filters on them: `operators.tally.sampling` in plain NumPy.

Results equal those of the operators bit for bit; a test compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tallystick.operators.tally import fixed
from tallystick.operators.tally.keys import (
    FINITE,
    LOWEST,
    MASKED,
    NORMAL,
    SHARE_BITS,
    logit_scale,
    penalty_factors,
    share_of,
)
from tallystick.sampling.plain import ARRAYS
from tallystick.transcripts.sampler import Sampler

Logits = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


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
    weights = fixed.exp2(ARRAYS, keys)
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
    weights = fixed.exp2(ARRAYS, keys)
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

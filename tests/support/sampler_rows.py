"""What a sampler makes of whole rows of logits on the way to its tokens, which `choose` computes row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import UsageError
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally import fixed_point
from tallystick.programs.operators.tally.fixed_point import MASKED
from tallystick.programs.random_words import position_words
from tallystick.verdicts.sampling.choice import adjusted_row, adjustment_of, check_form, check_rows
from tallystick.verdicts.sampling.filters import ARRAYS, Keys, Logits, Reals, filtered, keys_of


def adjusted(logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]) -> Logits:
    """Logits F32[rows, V] after the sampler's adjustments; the argument itself if there are none."""
    if not sampler.adjustments:
        return logits
    places = zip(logits, positions, histories, strict=True)
    rows = [adjusted_row(row, adjustment_of(sampler, place, past, len(row))) for row, place, past in places]
    return np.stack(rows) if rows else logits


def keys(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> npt.NDArray[np.int64]:
    """Keys of kept tokens, I64[rows, V]: log₂ of a weight relative to the heaviest, times 2³²; raises as `choose`."""
    check_rows(logits, positions, histories)
    left = adjusted(logits, sampler, positions, histories)
    rows = [filtered(keys_of(row, sampler, history), sampler) for row, history in zip(left, histories, strict=True)]
    return np.stack(rows) if rows else np.zeros(logits.shape, np.int64)


def kept(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> npt.NDArray[np.bool_]:
    """Which tokens the filters keep, BOOL[rows, V]; raises as `choose`."""
    return np.asarray(keys(logits, sampler, positions, histories) != MASKED, np.bool_)


def weights(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> npt.NDArray[np.int64]:
    """Weights of kept tokens, I64[rows, V] of scale 2⁴⁰; 0 for tokens that are filtered out. Raises as `choose`."""
    return fixed_point.exp2(ARRAYS, keys(logits, sampler, positions, histories))


def scores(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> npt.NDArray[np.int64]:
    """Keys of kept tokens plus noise, I64[rows, V]; the chosen token is the first with the largest score of its row.

    The score is `MASKED` for tokens that are filtered out. Greedy choice has no noise. Raises as `choose`, and
    `UsageError` for the form `cdf`, which chooses by sums.
    """
    if sampler.form == "cdf" and not sampler.is_greedy:
        raise UsageError("a sampler of the form cdf has no scores: it chooses by sums of weights")
    check_form(sampler)
    left = keys(logits, sampler, positions, histories)
    if sampler.is_greedy:
        return left
    width = left.shape[1]
    drawn = [position_words(sampler.seed, position, width) for position in positions]
    return np.stack([noisy(*row) for row in zip(left, drawn, strict=True)]) if len(left) else left


def noisy(keys: Keys, words: Keys) -> Keys:
    """Keys plus noise; masked keys stay masked."""
    return np.where(keys == MASKED, keys, keys + fixed_point.gumbel(ARRAYS, words))


def probabilities(logits: Logits, sampler: Sampler, histories: Sequence[Sequence[int]]) -> Reals:
    """The probability of each token, F64[rows, V]; 1 for the chosen token of a greedy sampler. Raises as `choose`."""
    left = keys(logits, sampler, [0] * len(logits), histories)
    if sampler.is_greedy:
        return np.asarray(np.arange(logits.shape[1]) == left.argmax(axis=1)[:, None], np.float64)
    weights = fixed_point.exp2(ARRAYS, left).astype(np.float64)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))

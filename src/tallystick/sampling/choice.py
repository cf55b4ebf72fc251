"""The token that a sampler chooses from logits, a pure function of logits, settings, seed, position and history.

The choice is specified in `spec/sampler.md`, and defined by `operators.tally.sampling`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError, UsageError
from tallystick.operators.tally import fixed
from tallystick.operators.tally.keys import MASKED
from tallystick.sampling.adjusting import Flags, adjusted, adjusted_row, adjustment_of
from tallystick.sampling.checks import check_form, check_rows
from tallystick.sampling.draw import NONE_LEFT, draw_by_sums, draw_gumbel, draw_largest, noisy
from tallystick.sampling.filters import Logits, filtered, keys_of
from tallystick.sampling.plain import ARRAYS
from tallystick.sampling.stream import position_words
from tallystick.transcripts.sampler import Sampler


def choose(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> npt.NDArray[np.int64]:
    """The chosen token of every row, I64[rows].

    Args:
        logits: F32[rows, V], V at most 2²⁰; NaN counts as −∞, +∞ as the largest F32.
        sampler: settings and seed.
        positions: the position of each row in its answer, from 0.
        histories: the tokens before each row, prompt and answer; only penalties use them.

    Raises `MalformedError` for logits, positions or tokens outside their range, and for a row where no token is left;
    `UsageError` for a sampler of unknown form.
    """
    check_rows(logits, positions, histories)
    check_form(sampler)
    rows = zip(logits, positions, histories, strict=True)
    tokens = np.array([choose_one(row, sampler, position, history) for row, position, history in rows], np.int64)
    if NONE_LEFT in tokens:
        raise MalformedError(f"logits: row {int(np.argmin(tokens))} leaves no token to choose")
    return tokens


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


def weights(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> npt.NDArray[np.int64]:
    """Weights of kept tokens, I64[rows, V] of scale 2⁴⁰; 0 for tokens that are filtered out. Raises as `choose`."""
    return fixed.exp2(ARRAYS, keys(logits, sampler, positions, histories))


def kept(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> npt.NDArray[np.bool_]:
    """Which tokens the filters keep, BOOL[rows, V]; raises as `choose`."""
    return np.asarray(keys(logits, sampler, positions, histories) != MASKED, np.bool_)


def keys(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> npt.NDArray[np.int64]:
    """Keys of kept tokens, I64[rows, V]: log₂ of a weight relative to the heaviest, times 2³²; raises as `choose`."""
    check_rows(logits, positions, histories)
    left = adjusted(logits, sampler, positions, histories)
    rows = [filtered(keys_of(row, sampler, history), sampler) for row, history in zip(left, histories, strict=True)]
    return np.stack(rows) if rows else np.zeros(logits.shape, np.int64)


def choose_one(
    logits: Logits, sampler: Sampler, position: int, history: Sequence[int], mask: Flags | None = None
) -> int:
    """The token of one row, F32[V], without checks, under the `mask` of a grammar; −1 where none is left."""
    if sampler.adjustments:
        logits = adjusted_row(logits, adjustment_of(sampler, position, history, len(logits), mask))
    left = filtered(keys_of(logits, sampler, history), sampler)
    if sampler.is_greedy:
        return draw_largest(left)
    if sampler.form == "cdf":
        return draw_by_sums(left, int(position_words(sampler.seed, position, 1)[0]))
    return draw_gumbel(left, position_words(sampler.seed, position, len(left)))

"""A fast test that claimed tokens are the sampler's choice, in about one pass over the logits.

The score l_c + T·g_c of the claimed token needs one random word. Another token j with l_j < l_c has a higher score only
if its noise is large enough. So noise is drawn only for tokens whose logit is less than T·`reach` below that score. A
skipped token has a higher score with probability at most exp((l_j − score)/T) < e^−reach. With a `reach` of
`EVERY_TOKEN` or more no token is skipped. Skipping is the only way in which a wrong token can pass: where filters or a
tie leave a doubt, the answer is no.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally.fixed_point import (
    KEYS_PER_LOGIT,
    NORMAL,
    UNIFORM_BITS,
    logit_scale,
    penalty_factors,
    rounded_share,
    uniform,
)
from tallystick.programs.random_words import words_at
from tallystick.verdicts.sampling.filters import ARRAYS, Flags, Integers, Logits, Reals

EVERY_TOKEN: Final = 37.0
"""More than the largest noise, −ln(2⁻⁵³) in nats."""
USUAL_REACH: Final = 7.0
NEAR: Final = 2.0**-20
"""Scores this close count as a tie, in units of T; far above the rounding of keys and noise."""
TEST_INEXACT: Final = 2.0**-13
"""Bounds the relative error of a sum of float32 weights."""
CANDIDATES_MAX: Final = 4096


class Rows:
    """Rows to look at, and the settings of their sampler in the units of logits.

    `temperature` is T in units of logits, 0 for a greedy sampler; `penalty` is 1 if all histories are empty. `top_p`
    and `min_p` are shares rounded to 30 bits; `is_filtering` says whether filters can remove tokens.
    """

    def __init__(
        self,
        logits: Logits,
        claimed: Integers,
        positions: Integers,
        histories: Sequence[Sequence[int]],
        sampler: Sampler,
    ) -> None:
        self.logits, self.claimed, self.positions, self.histories = logits, claimed, positions, histories
        self.sampler, vocabulary = sampler, logits.shape[1]
        self.temperature = 0.0 if sampler.is_greedy else KEYS_PER_LOGIT / logit_scale(sampler.temperature)
        self.penalty = sampler.repetition_penalty if any(len(history) for history in histories) else 1.0
        self.top_k = sampler.top_k or vocabulary
        self.top_p, self.min_p = rounded_share(sampler.top_p, "top_p"), rounded_share(sampler.min_p, "min_p")
        is_filtering = 0 < sampler.top_k < vocabulary or self.top_p < 1.0 or self.min_p > 0.0
        self.is_filtering = is_filtering and not sampler.is_greedy

    def penalised(self, rows: Integers, tokens: Integers) -> Reals:
        """The logits of `tokens` in `rows` after the repetition penalty."""
        x = self.logits[rows, tokens].astype(np.float64)
        if self.penalty == 1.0:
            return x
        above, below = penalty_factors(self.penalty)
        return np.where(self.seen[rows, tokens], x * np.where(x > 0, above, below), x)

    @cached_property
    def seen(self) -> Flags:
        """The tokens of each row's history, BOOL[rows, V]: a lookup takes constant time for any length of prompt."""
        seen = np.zeros(self.logits.shape, np.bool_)
        for row, history in zip(seen, self.histories, strict=True):
            row[np.asarray(history, np.int64)] = True
        return seen

    def noise(self, rows: Integers, tokens: Integers) -> Reals:
        """T times the Gumbel noise of `tokens` in `rows`."""
        if self.sampler.is_greedy:
            return np.zeros(len(rows))
        words = words_at(self.sampler.seed, self.positions[rows], tokens)
        exponential = -np.log1p(uniform(ARRAYS, words) * -(2.0**-UNIFORM_BITS))
        return np.asarray(-self.temperature * np.log(exponential))


@dataclass(frozen=True)
class Candidates:
    """Tokens that might score higher than the claimed token, and the claimed tokens; all rows, one after the other."""

    rows: Integers
    tokens: Integers
    logits: Reals
    is_ahead: Flags


def plainly_chosen(
    logits: Logits,
    tokens: Sequence[int],
    sampler: Sampler,
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
    reach: float = USUAL_REACH,
) -> Flags:
    """Whether each row's token is surely the choice, BOOL[rows]; always false for the form `cdf`, which has no scores.

    Arguments as for `choose`; the caller has checked them.
    """
    if not len(tokens) or (sampler.form == "cdf" and not sampler.is_greedy):
        return np.zeros(len(tokens), np.bool_)
    rows = Rows(logits, np.asarray(tokens, np.int64), np.asarray(positions, np.int64), histories, sampler)
    if sampler.is_greedy and rows.penalty == 1.0:
        return _are_first_of_the_largest(rows)
    everyone = np.arange(len(tokens))
    with np.errstate(invalid="ignore", over="ignore"):
        own = rows.penalised(everyone, rows.claimed)
        scores = own + rows.noise(everyone, rows.claimed)
        cuts = scores - rows.temperature * reach if rows.temperature else own
        cuts = np.minimum(cuts, own) if rows.is_filtering else cuts
        candidates, doubtful = _candidates(rows, scores, cuts)
    doubtful |= ~np.isfinite(own) | (np.abs(own) <= NORMAL)
    if not rows.is_filtering:
        return ~doubtful & ~_any(candidates.is_ahead, candidates.rows, len(tokens))
    return ~doubtful & _survives_filters(rows, candidates, own, doubtful)


def _are_first_of_the_largest(rows: Rows) -> Flags:
    """Whether each claimed token is the first of the largest logits; false where the largest is not finite or tiny."""
    first = rows.logits.argmax(axis=1)  # of a row with NaN, the first NaN
    largest = rows.logits[np.arange(len(first)), first]
    return np.asarray((first == rows.claimed) & np.isfinite(largest) & (np.abs(largest) > NORMAL))


def _candidates(rows: Rows, scores: Reals, cuts: Reals) -> tuple[Candidates, Flags]:
    """The tokens at or above the cuts; and the rows that have too many of them, or logits that are not finite."""
    least = np.nextafter(cuts.astype(np.float32), np.float32(-np.inf))
    hits = np.empty(rows.logits.shape[1], np.bool_)
    near = [np.flatnonzero(np.greater_equal(row, cut, out=hits)) for row, cut in zip(rows.logits, least, strict=True)]
    if rows.penalty < 1.0:
        near = [np.union1d(each, _raised(rows, row, float(cuts[row]))) for row, each in enumerate(near)]
    doubtful = np.array([len(each) > CANDIDATES_MAX for each in near])
    near = [each[:0] if too_many else each for each, too_many in zip(near, doubtful, strict=True)]
    row = np.repeat(np.arange(len(near)), [len(each) for each in near])
    token = np.concatenate(near)
    x = rows.penalised(row, token)
    ahead = x + rows.noise(row, token) >= scores[row] - rows.temperature * NEAR
    doubtful |= _any(~np.isfinite(x), row, len(near))
    return Candidates(row, token, x, ahead & (token != rows.claimed[row])), doubtful


def _raised(rows: Rows, row: int, cut: float) -> Integers:
    """The tokens that a penalty below 1 may raise above the cut."""
    tokens = np.flatnonzero(rows.seen[row])
    x = rows.penalised(np.full(len(tokens), row), tokens)
    return tokens[~(x < cut)]


def _survives_filters(rows: Rows, candidates: Candidates, own: Reals, doubtful: Flags) -> Flags:
    """Whether the filters surely keep the claimed token and surely remove every token that scores higher."""
    count = len(own)
    above = (candidates.logits >= own[candidates.rows]) & (candidates.tokens != rows.claimed[candidates.rows])
    is_open = _any(above | candidates.is_ahead, candidates.rows, count) & ~doubtful
    survives = ~is_open
    starts = np.searchsorted(candidates.rows, np.arange(count + 1))
    for row in np.flatnonzero(is_open):
        part = slice(starts[row], starts[row + 1])
        survives[row] = _survives(rows, int(row), candidates.logits[part], candidates.is_ahead[part], float(own[row]))
    return survives


def _survives(rows: Rows, row: int, x: Reals, is_ahead: Flags, own: float) -> bool:
    """`_survives_filters` for one row; `x` holds all logits of at least `own` and of all tokens that score higher."""
    temperature, near = rows.temperature, rows.temperature * NEAR
    ahead, x = x[is_ahead], np.sort(x)
    least = float(x[-1]) + temperature * math.log(rows.min_p) if rows.min_p > 0 else -math.inf
    blur = near * (1 + 2.0**-18 / max(rows.min_p, 2.0**-30))
    heavier = len(x) - int(np.searchsorted(x, own - near))
    if own < least + blur or heavier > rows.top_k:
        return False
    lighter = np.searchsorted(x, ahead + near, side="right")
    is_out = ahead < least - blur
    if rows.top_k < rows.logits.shape[1]:
        is_out |= len(x) - lighter >= rows.top_k
    return bool(is_out.all()) if rows.top_p == 1.0 else _survives_top_p(rows, row, x, lighter[~is_out], heavier, own)


def _survives_top_p(rows: Rows, row: int, x: Reals, lighter: Integers, heavier: int, own: float) -> bool:
    """Whether top-p keeps the claimed token and removes each token ahead.

    `x` is ascending. `lighter` counts for each token ahead the logits that are not larger. The last `heavier` logits of
    `x` are at least `own`.
    """
    weights = np.exp((x - x[-1]) / rows.temperature)
    others = float(weights[-heavier:].sum()) - math.exp((own - float(x[-1])) / rows.temperature)
    before = 0.0 if heavier == 1 else others * (1 + TEST_INEXACT)
    after_k = float(weights[-rows.top_k :].sum())
    is_kept = heavier == 1 or before < rows.top_p * after_k
    if is_kept and not len(lighter):
        return True
    least, most = (after_k, after_k) if len(weights) >= rows.top_k else _total(rows, row, weights, float(x[-1]))
    masses = np.concatenate([np.cumsum(weights[::-1])[::-1], [0.0]])[lighter]
    return (is_kept or before < rows.top_p * least) and bool((masses > rows.top_p * (1 + TEST_INEXACT) * most).all())


def _total(rows: Rows, row: int, weights: Reals, largest: float) -> tuple[float, float]:
    """Least and greatest weight of all tokens that top-k keeps, where it keeps more than `weights` holds.

    The sum over all logits ignores the penalty. A penalty above 1 makes seen tokens lighter, so the sum is an upper
    bound. A penalty below 1 makes them heavier, but every token that it raises above the cut is in `weights`.
    """
    seen, every = float(weights.sum()), rows.logits[row]
    if rows.top_k < len(every):
        every = np.partition(every, -rows.top_k)[-rows.top_k :]
    total = float(np.exp((every - np.float32(largest)) / np.float32(rows.temperature)).sum())
    if not math.isfinite(total):
        return seen, math.inf
    return total if rows.penalty == 1.0 else seen, total + (seen if rows.penalty < 1.0 else 0.0)


def _any(flags: Flags, rows: Integers, count: int) -> Flags:
    """Whether any flag of each row is set."""
    return np.bincount(rows[flags], minlength=count).astype(np.bool_)

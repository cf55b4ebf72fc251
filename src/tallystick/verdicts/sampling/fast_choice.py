"""The choice of one row in a few passes of float32 over the vocabulary: `choose_one` for who decodes, the same token.

With t = v / 2⁵³ of a token's word, E = −ln(1 − t) ≥ t and w its weight, the token with the smallest E / w has the
largest score. t / w is computed in float32 for all tokens, so that few remain that can win. If they are several, their
scores are computed exactly, as the specification has them.

Each filter keeps the head of one order, from heavy to light. So the winner of all tokens is the choice if the filters
keep it. If they do not, they keep nothing that stands behind it, and the winner of what is left is looked at. Where
rounding or a number that is not finite leaves a doubt, `choose_one` decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally.fixed_point import (
    KEYS_PER_LOGIT,
    NORMAL,
    UNIFORM_BITS,
    logit_scale,
    rounded_share,
    uniform,
)
from tallystick.programs.random_words import position_words
from tallystick.verdicts.sampling.choice import adjusted_row, adjustment_of, choose_one
from tallystick.verdicts.sampling.filters import (
    NUMBERS,
    Flags,
    Integers,
    Logits,
    keys_of,
    penalized,
    plain_logits,
    scores_of,
)

SLACK: Final = 1 + 2.0**-9
"""A factor far above the rounding of t / w in float32, of tokens that can win: their weight is above e⁻⁴¹."""
PENALIZED_MAX: Final = 2.0**11
"""The largest logit in units of T whose penalty may be rounded to float32 for that."""
NEAR: Final = 2.0**-20
"""Logits this close, in units of T, may have the same key."""
INEXACT: Final = 2.0**-12
"""Bounds the relative error of sums of weights."""
ROUNDS_MAX: Final = 16


def choose_fast(
    logits: Logits, sampler: Sampler, position: int, history: Sequence[int], mask: Flags | None = None
) -> int:
    """As `choose_one`: the token of one row, F32[V], without checks, under the `mask` of a grammar; −1 if none is left.

    `history` has prompt and answer so far.
    """
    row = logits
    if sampler.adjustments:
        row = adjusted_row(logits, adjustment_of(sampler, position, history, len(logits), mask))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        token = _chosen(Row(row, sampler, history), position)
    return choose_one(logits, sampler, position, history, mask) if token is None else token


class Row:
    """Logits F32[V] of one row, and what is computed of them once.

    `x` are the logits after the repetition penalty, F32[V], rounded where it changes them; `per_nat` is 1 / T.
    """

    def __init__(self, logits: Logits, sampler: Sampler, history: Sequence[int]) -> None:
        self.logits, self.x, self.sampler, self.history = logits, logits, sampler, history
        self.is_penalized = sampler.repetition_penalty != 1.0 and len(history) > 0
        if self.is_penalized:
            tokens, self.x = np.unique(np.asarray(history, np.int64)), logits.copy()
            self.x[tokens] = penalized(plain_logits(logits[tokens]), sampler.repetition_penalty, range(len(tokens)))
        self.largest = np.float32(self.x.max())
        self.per_nat = logit_scale(sampler.temperature) / KEYS_PER_LOGIT

    @cached_property
    def inverses(self) -> Logits:
        """1 / weight, F32[V]; ∞ where the weight is far below what can win."""
        gaps = np.subtract(self.largest, self.x)
        gaps *= np.float32(self.per_nat)
        return np.exp(gaps, out=gaps)

    @cached_property
    def is_plain(self) -> bool:
        """Whether float32 is good enough to tell which tokens can win."""
        scale = abs(float(self.largest))
        is_near = not self.is_penalized or scale * self.per_nat < PENALIZED_MAX
        return math.isfinite(scale) and scale > NORMAL and is_near

    @cached_property
    def total(self) -> float:
        """The weights of all tokens that top-k keeps."""
        if not 0 < self.sampler.top_k < len(self.x):
            return float(np.reciprocal(self.inverses).sum(dtype=np.float32))
        heavy = np.partition(self.x, len(self.x) - self.sampler.top_k)[-self.sampler.top_k :]
        return float(np.exp((heavy - self.largest) * np.float32(self.per_nat)).sum(dtype=np.float64))

    def scores(self, tokens: Integers, words: Integers) -> Integers:
        """The exact scores of some tokens: a key needs nothing of the row but its largest logit."""
        some = np.concatenate([tokens, np.flatnonzero(self.x == self.largest)])
        seen = np.flatnonzero(np.isin(some, np.asarray(self.history, np.int64))).tolist() if self.is_penalized else []
        return scores_of(keys_of(self.logits[some], self.sampler, seen)[: len(tokens)], words[tokens])

    def keeps(self, token: int) -> bool | None:
        """Whether the filters keep a token; None in doubt."""
        own = self.x[token]
        ahead, equal = np.flatnonzero(self.x > own), np.flatnonzero(self.x == own)
        rank = len(ahead) + int(np.searchsorted(equal, token))
        if rank == 0 and not self.is_penalized:
            return True
        if self._is_close(float(own), len(ahead), len(equal)):
            return None
        if 0 < self.sampler.top_k <= rank:
            return False
        weight = 1 / float(self.inverses[token])
        before = float(np.reciprocal(self.inverses[ahead]).sum(dtype=np.float64)) + (rank - len(ahead)) * weight
        least = rounded_share(self.sampler.min_p, "min_p")
        heavy = least == 0 or _is_below(least, weight)
        share = rounded_share(self.sampler.top_p, "top_p")
        inside = share == 1 or rank == 0 or _is_below(before, self.total * share)
        return False if heavy is False or inside is False else None if None in (heavy, inside) else True

    def _is_close(self, own: float, ahead: int, equal: int) -> bool:
        """Whether keys may be in another order than `x`; tokens of equal logits have equal keys."""
        near = NEAR / self.per_nat + (abs(own) * 2.0**-22 if self.is_penalized else 0.0)
        is_alone = equal == 1 or not self.is_penalized
        most, least = np.count_nonzero(self.x >= own - near), np.count_nonzero(self.x > own + near)
        return not is_alone or most != ahead + equal or least != ahead


def _chosen(row: Row, position: int) -> int | None:
    """The choice of a row; None in doubt."""
    sampler = row.sampler
    if not row.is_plain or (sampler.form != "gumbel" and not sampler.is_greedy):
        return None
    if sampler.is_greedy:
        return None if row.is_penalized else int(np.argmax(row.x))
    words = position_words(sampler.seed, position, len(row.x))
    ratios = np.multiply(_leading(words), row.inverses)
    is_filtering = sampler.top_k > 0 or sampler.top_p < 1.0 or sampler.min_p > 0.0
    for _ in range(ROUNDS_MAX):
        token = _winner(row, words, ratios)
        is_kept = row.keeps(token) if is_filtering and token is not None else True
        if is_kept is not False:
            return token if is_kept else None
        assert token is not None
        _remove(ratios, row.x, token)
    return None


def _winner(row: Row, words: Integers, ratios: Any) -> int | None:
    """The token with the largest score among those whose ratio is finite; None in doubt."""
    likely = int(np.argmin(ratios))
    if not math.isfinite(ratios[likely]):
        return None
    t = uniform(NUMBERS, int(words[likely])) * 2.0**-UNIFORM_BITS
    most = -math.log1p(-t) * float(row.inverses[likely]) * SLACK
    able = np.flatnonzero(ratios <= most)
    return int(able[0]) if len(able) == 1 else int(able[np.argmax(row.scores(able, words))])


def _remove(ratios: Any, x: Logits, token: int) -> None:
    """Take a token out, and with it the lighter ones and those of equal weight behind it."""
    np.putmask(ratios, x < x[token], np.inf)
    np.putmask(ratios[token:], x[token:] == x[token], np.inf)


def _leading(words: Integers) -> Logits:
    """The leading 32 bits of each word as a number from 0 to 1, at most t: F32[V]."""
    high = (words.view(np.uint64) >> np.uint64(32)).view(np.int64).astype(np.float32)
    return np.multiply(high, np.float32(2.0**-32), out=high)


def _is_below(x: float, bound: float) -> bool | None:
    """Whether x ≤ bound; None in doubt."""
    if x < bound * (1 - INEXACT) - INEXACT**3:
        return True
    return False if x > bound * (1 + INEXACT) + INEXACT**3 else None

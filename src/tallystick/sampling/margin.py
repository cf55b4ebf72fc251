"""How far logits would have to move apart for a sampler to choose a claimed token.

The *margin* of a token is the least spread m such that logits that differ from the given ones by m/2 at most could make
the sampler choose it: 0 for the token it does choose, infinite for one that is out. Where honest logits differ by ε at
most, every honest token has a margin of 2ε at most: the *tie band*. A token beyond it was not chosen from such logits.

Gumbel form: the claimed token has to be possibly kept, and every token whose score l + T·g is larger by more than m has
to be possibly filtered out. Without filters that is DiFR's margin, max(l + T·g) − (l_c + T·g_c) (arXiv 2511.20621, §3).
By sums: the threshold u has to lie between the running sums before and after the token, whose odds a spread m moves by
exp(±m/T) at most. Greedy: max l − l_c. Each condition is necessary, so that a margin is never overstated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.operators.tally import fixed
from tallystick.operators.tally.keys import WORD_BITS, logit_scale, penalty_factors
from tallystick.sampling.checks import check_rows
from tallystick.sampling.draw import draw_by_sums, draw_gumbel
from tallystick.sampling.edges import ABSOLUTE, RELATIVE, SWING_MAX, FilterEdges
from tallystick.sampling.fast_path import EVERY_TOKEN, plainly_chosen
from tallystick.sampling.filters import Keys, Logits, filtered, keys_at, relative_logits
from tallystick.sampling.plain import ARRAYS
from tallystick.sampling.ranks import Ranks, Reals
from tallystick.sampling.stream import position_words
from tallystick.transcripts.sampler import Sampler

ROUNDED: Final = 4
"""More than a difference of two keys is rounded by."""
HALVINGS: Final = 30
LEAST_SPREAD: Final = 2.0**-20
"""A spread in units of T of which no smaller one is told from 0."""
DOUBLINGS: Final = 256
"""From the least spread of the lowest temperature to beyond the largest difference of logits."""
AT_ONCE: Final = 256
"""Rows that are looked at together, so that memory does not grow with an answer."""


def margins(
    logits: Logits,
    tokens: Sequence[int],
    sampler: Sampler,
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
    reach: float = EVERY_TOKEN,
) -> Reals:
    """The margin of each row's claimed token in logits, F64[rows]; arguments otherwise as for `choose`.

    Rows whose token is the choice are told apart by the fast path (`plainly_chosen`); `reach` says how thoroughly.
    Raises `MalformedError` for rows that cannot be chosen from and for a token outside the vocabulary. Of histories
    only their number is checked.
    """
    check_rows(logits, positions, [(token,) for token in tokens])
    assert len(histories) == len(tokens)
    found = np.zeros(len(tokens))
    for start in range(0, len(tokens), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        rows = logits[part], tokens[part], sampler, positions[part], histories[part]
        for row in np.flatnonzero(~plainly_chosen(*rows, reach)).tolist():
            place = start + row
            found[place] = margin(logits[place], tokens[place], sampler, positions[place], histories[place])
    return found


def margin(logits: Logits, token: int, sampler: Sampler, position: int, history: Sequence[int]) -> float:
    """The margin of one row's token, without checks and short cuts."""
    x = relative_logits(logits, sampler, history)
    if x[token] == -math.inf:
        return math.inf
    apart = -float(x[token]) if sampler.is_greedy else _drawn(x, token, sampler, position)
    return apart / (stretch(sampler) if len(history) else 1.0)


def _drawn(x: Reals, token: int, sampler: Sampler, position: int) -> float:
    keys = keys_at(x, sampler)
    left = filtered(keys, sampler)
    if sampler.form == "cdf":
        word = int(position_words(sampler.seed, position, 1)[0])
        return 0.0 if draw_by_sums(left, word) == token else _between_sums(RunningSums(x, token, sampler, word))
    words = position_words(sampler.seed, position, len(keys))
    return 0.0 if draw_gumbel(left, words) == token else _largest_score(x, token, sampler, words)


def _largest_score(x: Reals, token: int, sampler: Sampler, words: Keys) -> float:
    """By logits, not by keys: those end at a lowest key, where the temperature is low.

    Of the tokens ahead by more than a spread all have to be possibly out: the heaviest of them stands for all.
    """
    scores = x + (fixed.gumbel(ARRAYS, words) - ROUNDED) / logit_scale(sampler.temperature)
    leads = scores - scores[token] - ROUNDED / logit_scale(sampler.temperature)
    ranks = Ranks(x)
    edges, own = FilterEdges(ranks, sampler), float(x[token])
    if not edges.is_filtering:
        return max(float(leads.max()), 0.0)
    leads[token] = -math.inf
    largest_yet = np.maximum.accumulate(leads[ranks.tokens])

    def is_explained(spread: float) -> bool:
        first = int(np.searchsorted(largest_yet, spread, side="right"))
        return edges.possible(own, spread) and not (first < len(ranks) and edges.sure(ranks.at(first), spread))

    return _least(is_explained, edges.temperature)


@dataclass(frozen=True)
class RunningSums:
    """A claimed token between running sums: `x` as of `Ranks`, and the word that was drawn."""

    x: Reals
    token: int
    sampler: Sampler
    word: int

    @cached_property
    def edges(self) -> FilterEdges:
        """The filters."""
        return FilterEdges(Ranks(self.x), self.sampler)

    @cached_property
    def leading(self) -> float:
        """The draw, from 0 to 1."""
        leading: float = ((self.word % 2**64) >> (64 - WORD_BITS)) / 2**WORD_BITS
        return leading

    @cached_property
    def until(self) -> WeightSums:
        """The token and those before it."""
        return self._weight_sums(np.arange(len(self.x)) <= self.token)

    @cached_property
    def since(self) -> WeightSums:
        """The token and those after it."""
        return self._weight_sums(np.arange(len(self.x)) >= self.token)

    def _weight_sums(self, are: npt.NDArray[np.bool_]) -> WeightSums:
        ranks, temperature = self.edges.ranks, self.edges.temperature
        largest, token = float(self.x[are].max()), ranks.tokens
        others = np.where(are[token] & (token != self.token), ranks.falling - largest, -math.inf)
        own = math.exp((float(self.x[self.token]) - largest) / temperature)
        return WeightSums(largest / temperature, own, np.concatenate([[0.0], np.cumsum(np.exp(others / temperature))]))


@dataclass(frozen=True)
class WeightSums:
    """Weights of some tokens relative to the heaviest of them, whose own is exp(`largest`): none is lost as too small.

    `own` is that of the claimed token, entry i of `others` that of those of the i largest logits besides, F64[V + 1].
    """

    largest: float
    own: float
    others: Reals

    def without_own(self, count: int) -> float:
        """What those of the `count` largest logits weigh but the claimed token."""
        return float(self.others[count]) * math.exp(self.largest)

    def raised(self, count: int, by: float) -> float:
        """What those of the `count` largest logits and the claimed token weigh, times exp(`by`)."""
        return (float(self.others[count]) + self.own) * math.exp(min(self.largest + by, SWING_MAX))


def _between_sums(sums: RunningSums) -> float:
    """The odds of the sum before the token may be lower, those of the sum up to it higher, by exp(m/T)."""
    edges, leading, own = sums.edges, sums.leading, float(sums.x[sums.token])
    until, since = sums.until, sums.since

    def is_explained(spread: float) -> bool:
        if not edges.possible(own, spread):
            return False
        possible, sure, swing = edges.count_possible(spread), edges.count_sure(spread), spread / edges.temperature
        slack = ABSOLUTE * len(sums.x) + RELATIVE * float(edges.sums[possible])
        reaches = until.raised(possible, swing) * (1.0 - leading) + slack >= leading * since.without_own(sure)
        starts = until.without_own(sure) * (1.0 - leading) <= leading * since.raised(possible, swing) + slack
        return reaches and starts

    return _least(is_explained, edges.temperature)


def _least(is_explained: Callable[[float], bool], scale: float) -> float:
    """The least spread that explains, to a part in 2³⁰ of the octave it lies in; infinite where none does.

    What a spread explains, a larger one explains, so that the octave is found by halving too.
    """
    octave = bisect_left(range(DOUBLINGS), True, key=lambda each: is_explained(scale * LEAST_SPREAD * 2.0**each))
    if octave == DOUBLINGS:
        return math.inf
    high = scale * LEAST_SPREAD * 2.0**octave
    low = high / 2 if octave else 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_explained(middle) else (middle, high)
    return low


def stretch(sampler: Sampler) -> float:
    """How much the repetition penalty can stretch a difference of logits, and a tie band with it."""
    return max(1.0, *penalty_factors(sampler.repetition_penalty))

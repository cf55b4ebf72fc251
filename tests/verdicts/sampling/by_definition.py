"""Margins and ceilings of tokens by looking at every token of the vocabulary for every spread: slow, and plain to see.

What `verdicts.sampling.edges`, `verdicts.sampling.margin` and `verdicts.sampling.margin` find by ranks is held to this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally.fixed_point import (
    KEYS_PER_LOGIT,
    LOWEST,
    MASKED,
    SHARE_BITS,
    WORD_BITS,
    logit_scale,
    penalty_factors,
    share_of,
)
from tallystick.programs.random_words import position_words
from tallystick.verdicts.sampling.edges import ABSOLUTE, RELATIVE
from tallystick.verdicts.sampling.filters import (
    Keys,
    Logits,
    draw_by_sums,
    draw_gumbel,
    draw_largest,
    filtered,
    keys_of,
)
from tallystick.verdicts.sampling.margin import EDGE
from tests.support.sampler_rows import noisy

Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ROUNDED: Final = 4
HALVINGS: Final = 30
DOUBLINGS: Final = 60


@dataclass(frozen=True)
class Edges:
    """The filters of `sampler`, which is not greedy, over the keys of one row, I64[V], of which some are not masked."""

    keys: Keys
    sampler: Sampler

    @cached_property
    def temperature(self) -> float:
        """The temperature, at least that at which keys no longer grow."""
        return KEYS_PER_LOGIT / logit_scale(self.sampler.temperature)

    @cached_property
    def logits(self) -> Reals:
        """The penalised logits relative to the largest, F64[V], −∞ for what is out."""
        return np.where(self.keys == MASKED, -math.inf, self.keys / logit_scale(self.sampler.temperature))

    @cached_property
    def is_filtering(self) -> bool:
        """Whether any filter can take a token away."""
        return self._k < len(self.logits) or self._share < 1.0 or self._least > -math.inf

    @cached_property
    def weights(self) -> Reals:
        """exp(l / T), F64[V]."""
        return np.exp(self.logits / self.temperature)

    def possible(self, tokens: npt.NDArray[np.int64], spread: float) -> Flags:
        """Which of `tokens` some logits within `spread` keep, BOOL as `tokens`."""
        x, spread = self.logits[tokens], spread + self._rounding
        in_k = x >= self._sorted[self._k - 1] - spread
        in_min_p = x >= self._least - spread
        return np.asarray(in_k & in_min_p & self._possibly_in_p(x, spread) & (x > -math.inf))

    def sure(self, tokens: npt.NDArray[np.int64], spread: float) -> Flags:
        """Which of `tokens` all logits within `spread` keep, BOOL as `tokens`."""
        x, spread = self.logits[tokens], spread + self._rounding
        in_k = (x > self._after_k + spread) | (self._k == len(self.logits))
        others = np.where(x == 0.0, self._second, 0.0)
        in_min_p = x - spread > others + self._least
        return in_k & in_min_p & self._surely_in_p(x, others, spread) & (x > -math.inf)

    def _possibly_in_p(self, x: Reals, spread: float) -> Flags:
        """Heavier tokens are those above x by more than the spread; they weigh least, all others most."""
        if self._share >= 1.0:
            return np.ones(x.shape, np.bool_)
        heavier = self._count_above(x + spread)
        above = self._sums[np.minimum(heavier, self._k)]
        others = self._rest[np.minimum(heavier, self._k)] * self._swing(spread)
        slack = RELATIVE * (above + others) + ABSOLUTE * len(self.logits)
        is_inside = above * (1.0 - self._share) < self._share * others + slack
        return np.asarray(is_inside & (self._share > 0.0) | (heavier == 0))

    def _surely_in_p(self, x: Reals, others: Reals, spread: float) -> Flags:
        """Heavier tokens are all those not surely lighter; they weigh most, all others least."""
        if self._share >= 1.0:
            return np.ones(x.shape, np.bool_)
        heavier = np.minimum(self._count_from(x - spread), self._k)
        surely_in = self._count_above(np.float64(self._after_k + spread)) if self._k < len(self.logits) else self._k
        own = np.exp(x / self.temperature)
        rivals = np.where(x == 0.0, self._without_first[heavier], np.maximum(self._sums[heavier] - own, 0.0))
        above = rivals * self._swing(spread)
        below = own + np.maximum(self._sums[np.maximum(surely_in, heavier)] - self._sums[heavier], 0.0)
        slack = RELATIVE * (above + below) + ABSOLUTE * len(self.logits)
        return np.asarray((above * (1.0 - self._share) + slack < self._share * below) | (x - spread > others))

    def _swing(self, spread: float) -> float:
        return math.exp(min(spread / self.temperature, 700.0))

    def _count_above(self, x: Reals | np.float64) -> npt.NDArray[np.int64]:
        """How many logits are larger."""
        return np.asarray(len(self.logits) - np.searchsorted(self._ascending, x, side="right"))

    def _count_from(self, x: Reals) -> npt.NDArray[np.int64]:
        """How many logits are as large or larger."""
        return np.asarray(len(self.logits) - np.searchsorted(self._ascending, x, side="left"))

    @cached_property
    def _ascending(self) -> Reals:
        return np.sort(self.logits)

    @cached_property
    def _sorted(self) -> Reals:
        return self._ascending[::-1]

    @cached_property
    def _sums(self) -> Reals:
        """Entry i: the weight of the i heaviest."""
        heaviest = np.exp(self._sorted / self.temperature)
        return np.concatenate([[0.0], np.cumsum(heaviest)])

    @cached_property
    def _rest(self) -> Reals:
        """Entry i: the weight of what top-k keeps but the i heaviest."""
        kept = np.exp(self._sorted[: self._k] / self.temperature)
        return np.concatenate([np.cumsum(kept[::-1])[::-1], [0.0]])

    @cached_property
    def _without_first(self) -> Reals:
        """Entry i: the weight of the i heaviest but the first of them."""
        return np.concatenate([[0.0, 0.0], np.cumsum(np.exp(self._sorted[1:] / self.temperature))])

    @cached_property
    def _k(self) -> int:
        return min(self.sampler.top_k or len(self.logits), len(self.logits))

    @cached_property
    def _after_k(self) -> float:
        """The largest logit that top-k leaves out."""
        return float(self._sorted[self._k]) if self._k < len(self.logits) else -math.inf

    @cached_property
    def _second(self) -> float:
        return float(self._sorted[1]) if len(self.logits) > 1 else -math.inf

    @cached_property
    def _share(self) -> float:
        return share_of(self.sampler.top_p, "top_p") / (1 << SHARE_BITS)

    @cached_property
    def _least(self) -> float:
        """The least logit that min-p keeps, relative to the largest."""
        share = share_of(self.sampler.min_p, "min_p") / (1 << SHARE_BITS)
        if share == 0.0:
            return -math.inf
        return self.temperature * math.log(share)

    @cached_property
    def _rounding(self) -> float:
        """More than the rounding of keys and weights moves a token against an edge, in logits."""
        at_least = ABSOLUTE * math.exp(-self._least / self.temperature) if self._least > -math.inf else 0.0
        return self.temperature * (RELATIVE + at_least)


def margin(logits: Logits, token: int, sampler: Sampler, position: int, history: Sequence[int]) -> float:
    """The margin of one row's token, without checks and short cuts."""
    keys = keys_of(logits, sampler, history)
    if keys[token] == MASKED:
        return math.inf
    apart = _greedy(keys, token) if sampler.is_greedy else _drawn(keys, token, sampler, position)
    return apart / _stretch(sampler, history)


def _greedy(keys: Keys, token: int) -> float:
    return 0.0 if draw_largest(keys) == token else -int(keys[token]) / KEYS_PER_LOGIT


def _drawn(keys: Keys, token: int, sampler: Sampler, position: int) -> float:
    edges = Edges(keys, sampler)
    left = filtered(keys, sampler)
    if sampler.form == "cdf":
        word = int(position_words(sampler.seed, position, 1)[0])
        return 0.0 if draw_by_sums(left, word) == token else _between_sums(edges, token, word)
    words = position_words(sampler.seed, position, len(keys))
    return 0.0 if draw_gumbel(left, words) == token else _largest_score(edges, token, words)


def _largest_score(edges: Edges, token: int, words: Keys) -> float:
    scores = noisy(edges.keys, words)
    ahead = np.flatnonzero((scores > scores[token]) & (edges.keys != MASKED))
    leads = np.maximum(scores[ahead] - scores[token] - ROUNDED, 0) / logit_scale(edges.sampler.temperature)
    claimed = np.array([token])

    def is_explained(spread: float) -> bool:
        further = ahead[leads > spread]
        return bool(edges.possible(claimed, spread)[0]) and not edges.sure(further, spread).any()

    if not edges.is_filtering:
        return float(leads.max(initial=0.0))
    return _least(is_explained, edges.temperature)


def _between_sums(edges: Edges, token: int, word: int) -> float:
    """The odds of the sum before the token may be lower, those of the sum up to it higher, by exp(m/T)."""
    leading = ((word % 2**64) >> (64 - WORD_BITS)) / 2**WORD_BITS
    everyone, weights = np.arange(len(edges.keys)), edges.weights

    def is_explained(spread: float) -> bool:
        may, must = (edges.possible(everyone, spread), edges.sure(everyone, spread))
        possible, sure = np.where(may, weights, 0.0), np.where(must, weights, 0.0)
        swing = math.exp(min(spread / edges.temperature, 700.0))
        slack = ABSOLUTE * len(weights) + RELATIVE * float(possible.sum())
        before, until = float(sure[:token].sum()), float(possible[: token + 1].sum())
        after, since = float(sure[token + 1 :].sum()), float(possible[token:].sum())
        reaches = until * swing * (1.0 - leading) + slack >= leading * after
        return bool(may[token]) and reaches and before * (1.0 - leading) <= leading * since * swing + slack

    return _least(is_explained, edges.temperature)


def _least(is_explained: Callable[[float], bool], scale: float) -> float:
    """The least spread that explains, to a part in 2³⁰ of the octave it lies in; infinite where none does."""
    low, high = 0.0, scale * 2.0**-20
    for _ in range(DOUBLINGS):
        if is_explained(high):
            break
        low, high = high, 2.0 * high
    else:
        return math.inf
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_explained(middle) else (middle, high)
    return low


def _stretch(sampler: Sampler, history: Sequence[int]) -> float:
    """How much the repetition penalty can stretch a difference of logits."""
    return max(1.0, *penalty_factors(sampler.repetition_penalty)) if len(history) else 1.0


def edges_at(keys: Keys, sampler: Sampler, other: Sampler) -> Edges:
    """Keys of one sampler under the temperature of another."""
    ratio = logit_scale(other.temperature) / logit_scale(sampler.temperature)
    return Edges(np.where(keys == MASKED, MASKED, np.maximum(keys * ratio, LOWEST).astype(np.int64)), other)


def share_and_ceiling(edges: Edges, token: int, spread: float) -> tuple[float, float]:
    """The token's probability, a little of which lies outside the filters, and its ceiling inside them."""
    everywhere = float(edges.weights[token] / edges.weights.sum())
    if not edges.is_filtering:
        return everywhere, everywhere
    inside = np.where(edges.possible(np.arange(len(edges.keys)), 0.0), edges.weights, 0.0)
    share = float(inside[token] / inside.sum())
    return (1 - EDGE) * share + EDGE * everywhere, ceiling(edges, token, spread)


def ceiling(edges: Edges, token: int, spread: float) -> float:
    """The token's share of what is surely kept, with it; 0 where it is surely out."""
    if not edges.is_filtering:
        return float(edges.weights[token] / edges.weights.sum())
    if not edges.possible(np.array([token]), spread)[0]:
        return 0.0
    everyone = np.arange(len(edges.keys))
    sure = edges.sure(everyone, spread)
    sure[token] = False
    own = float(edges.weights[token])
    return own / (own + float(edges.weights[sure].sum())) if own > 0 else 0.0


def is_underflowing(logits: Logits, sampler: Sampler, history: Sequence[int]) -> bool:
    """Whether logits lie so far apart for the temperature that some weights here are 0 and others no numbers."""
    keys = keys_of(logits, sampler, history)
    return bool((keys[keys != MASKED] < -900 * 2**32).any())

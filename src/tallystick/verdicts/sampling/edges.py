"""The tokens that filters keep when logits are known only within a spread, for one row or many."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally.fixed_point import KEYS_PER_LOGIT, WEIGHT_BITS, logit_scale, rounded_share
from tallystick.verdicts.sampling.filters import Flags, Integers, Ranks, Reals

# The tokens that filters keep when logits are known only within a spread.
#
# Logits are known *within a spread m* when each may be off by m/2, so that each difference is known up to m. A token is
# *possibly* kept if some such logits keep it, and *surely* kept if all of them do. Both answers are conservative: a
# token that is not `possible` is never kept, a token that is `sure` is always kept. At m = 0 both sets are what the
# filters keep, up to the rounding of fixed-point numbers.
#
# Each set holds the tokens of the largest logits down to some rank. A binary search finds that rank.

RELATIVE: Final = 2.0**-26
"""Bounds the relative error of a fixed-point weight (measured: 2⁻³⁰) and of a sum in float64."""
ABSOLUTE: Final = 2.0 ** (2 - WEIGHT_BITS)
"""Bounds the rounding of a fixed-point weight, relative to the heaviest weight."""
SWING_MAX: Final = 700.0
"""The largest exponent whose power of e is a finite float64."""


class FilterEdges:
    """The filters of `sampler`, which is not greedy, over the logits of one row.

    `temperature` is not below the one at which keys reach their largest scale; `is_filtering` says whether any filter
    can take a token away.
    """

    def __init__(self, ranks: Ranks, sampler: Sampler) -> None:
        self.ranks, self.temperature = ranks, temperature_of(sampler)
        self._k = min(sampler.top_k or len(ranks), len(ranks))
        self._share = rounded_share(sampler.top_p, "top_p")
        self._least, self._rounding = least_logit(sampler), rounding(sampler)
        self.is_filtering = self._k < len(ranks) or self._share < 1.0 or self._least > -math.inf

    @cached_property
    def weights(self) -> Reals:
        """exp(l / T) by rank, F64[V]."""
        return np.exp(self.ranks.falling / self.temperature)

    @cached_property
    def sums(self) -> Reals:
        """Entry i: the total weight of the i heaviest tokens, F64[V + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.weights)])

    def weight(self, x: float) -> float:
        """The weight of logit `x`: exp(x / T)."""
        return math.exp(x / self.temperature)

    def possible(self, x: float, spread: float) -> bool:
        """Whether some logits within `spread` keep a token whose logit in `ranks` is `x`."""
        spread += self._rounding
        least_of_top_k = self.ranks.at(self._k - 1)
        is_near = x >= least_of_top_k - spread and x >= self._least - spread
        return x > -math.inf and is_near and self._possibly_in_p(x, spread)

    def sure(self, x: float, spread: float) -> bool:
        """Whether all logits within `spread` keep a token whose logit in `ranks` is `x`."""
        spread += self._rounding
        if x == -math.inf or not (self._k == len(self.ranks) or x > self._after_k + spread):
            return False
        largest_other = (self.ranks.at(1) if len(self.ranks) > 1 else -math.inf) if x == 0.0 else 0.0
        return x - spread > largest_other + self._least and self._surely_in_p(x, largest_other, spread)

    def count_possible(self, spread: float) -> int:
        """How many tokens are possibly kept."""
        return self._count(lambda x: self.possible(x, spread))

    def count_sure(self, spread: float) -> int:
        """How many tokens are surely kept."""
        return self._count(lambda x: self.sure(x, spread))

    def _count(self, is_kept: Callable[[float], bool]) -> int:
        """How many tokens `is_kept` accepts; if it accepts a logit, it accepts every larger one."""
        return bisect_left(range(len(self.ranks)), True, key=lambda rank: not is_kept(self.ranks.at(rank)))

    def _possibly_in_p(self, x: float, spread: float) -> bool:
        """Most favourable case: heavier tokens (above x by more than the spread) weigh least, all others most."""
        heavier = self.ranks.above(x + spread) if self._share < 1.0 else 0
        if heavier == 0:
            return True
        above = float(self.sums[min(heavier, self._k)])
        others = float(self._rest[min(heavier, self._k)]) * self._swing(spread)
        slack = RELATIVE * (above + others) + ABSOLUTE * len(self.ranks)
        return self._share > 0.0 and above * (1.0 - self._share) < self._share * others + slack

    def _surely_in_p(self, x: float, largest_other: float, spread: float) -> bool:
        """Least favourable case: all tokens that are not surely lighter weigh most, all others weigh least."""
        if self._share >= 1.0 or x - spread > largest_other:
            return True
        heavier, own = min(self.ranks.at_least(x - spread), self._k), self.weight(x)
        surely_in = self.ranks.above(self._after_k + spread) if self._k < len(self.ranks) else self._k
        rivals = float(self._without_first[heavier]) if x == 0.0 else max(float(self.sums[heavier]) - own, 0.0)
        above = rivals * self._swing(spread)
        below = own + max(float(self.sums[max(surely_in, heavier)] - self.sums[heavier]), 0.0)
        slack = RELATIVE * (above + below) + ABSOLUTE * len(self.ranks)
        return above * (1.0 - self._share) + slack < self._share * below

    def _swing(self, spread: float) -> float:
        return math.exp(min(spread / self.temperature, SWING_MAX))

    @cached_property
    def _rest(self) -> Reals:
        """Entry i: the weight of what top-k keeps without the i heaviest, F64[k + 1].

        Summed from the light end: a difference of two large sums would round small weights away.
        """
        return np.concatenate([np.cumsum(self.weights[: self._k][::-1])[::-1], [0.0]])

    @cached_property
    def _without_first(self) -> Reals:
        """Entry i: the weight of the i heaviest tokens without the first, F64[V + 1]."""
        return np.concatenate([[0.0, 0.0], np.cumsum(self.weights[1:])])

    @cached_property
    def _after_k(self) -> float:
        """The largest logit that top-k leaves out."""
        return self.ranks.at(self._k) if self._k < len(self.ranks) else -math.inf


def temperature_of(sampler: Sampler) -> float:
    """The temperature, but not below the one at which keys reach their largest scale."""
    return KEYS_PER_LOGIT / logit_scale(sampler.temperature)


def least_logit(sampler: Sampler) -> float:
    """The least logit that min-p keeps, relative to the largest."""
    share = rounded_share(sampler.min_p, "min_p")
    return temperature_of(sampler) * math.log(share) if share else -math.inf


def rounding(sampler: Sampler) -> float:
    """Bounds how far the rounding of keys and weights moves a token relative to a filter's edge, in logits."""
    least, temperature = least_logit(sampler), temperature_of(sampler)
    return temperature * (RELATIVE + (ABSOLUTE * math.exp(-least / temperature) if least > -math.inf else 0.0))


# Which tokens the filters of several samplers surely keep, for many rows at once: `FilterEdges.sure` over arrays.


def surely_kept(logits: Reals, samplers: Sequence[Sampler], spread: float) -> list[Flags]:
    """For each sampler, the tokens that its filters keep from all logits within `spread`, BOOL[rows, n].

    `logits` are F64[rows, n], falling in every row, −∞ where a row has fewer. Tokens left out of a row would only make
    more of them sure. The samplers are not greedy and differ in their temperature alone.
    """
    there = np.isfinite(logits)
    is_open = there.sum(axis=1) > 1
    if not is_open.any() or not any(each.top_k or each.top_p < 1.0 or each.min_p > 0.0 for each in samplers):
        return [there for _ in samplers]
    rows = Falling(logits[is_open], spread + max(map(rounding, samplers)))
    all_kept = []
    for sampler in samplers:
        kept = there.copy()
        kept[is_open] = _surely_kept(rows, sampler)
        all_kept.append(kept)
    return all_kept


@dataclass(frozen=True)
class Falling:
    """Rows of at least two falling logits, F64[rows, n], known within `spread`, with what filters ask of any of them.

    In every array a row comes first. Logits of −∞ stand behind all others.
    """

    logits: Reals
    spread: float

    @cached_property
    def x(self) -> Reals:
        """The logits minus the largest."""
        return self.logits - self.logits[:, :1]

    @cached_property
    def count(self) -> Integers:
        """The number of logits, I64[rows, 1]."""
        return np.asarray(np.isfinite(self.logits).sum(axis=1, keepdims=True))

    @cached_property
    def largest_other(self) -> Reals:
        """The largest of the other logits."""
        return np.where(self.x == 0.0, self.x[:, 1:2], 0.0)

    @cached_property
    def not_lighter(self) -> Integers:
        """How many logits are not smaller by more than the spread."""
        rising = -self.x
        edges = rising + self.spread
        counts = [np.searchsorted(row, edge, "right") for row, edge in zip(rising, edges, strict=True)]
        return np.asarray(np.minimum(np.stack(counts), self.count))

    def before(self, x: Reals) -> Integers:
        """How many logits of each row are larger than its `x`, I64[rows, 1]."""
        return np.asarray((self.x > x).sum(axis=1, keepdims=True))


def _surely_kept(rows: Falling, sampler: Sampler) -> Flags:
    k = np.minimum(sampler.top_k or rows.x.shape[1], rows.count)
    behind = np.take_along_axis(rows.x, np.minimum(k, rows.x.shape[1] - 1), 1)
    after_k = np.where(k < rows.count, behind, -np.inf)
    kept = np.isfinite(rows.x) & ((k == rows.count) | (rows.x > after_k + rows.spread))
    kept &= rows.x - rows.spread > rows.largest_other + least_logit(sampler)
    share = rounded_share(sampler.top_p, "top_p")
    if share < 1.0:
        surely_in = np.where(k < rows.count, rows.before(after_k + rows.spread), k)
        kept &= (rows.x - rows.spread > rows.largest_other) | _is_in_p(
            rows, temperature_of(sampler), share, k, surely_in
        )
    return np.logical_and.accumulate(kept, axis=1)


def _is_in_p(rows: Falling, temperature: float, share: float, k: Integers, surely_in: Integers) -> Flags:
    """As `FilterEdges._surely_in_p`: all tokens that are not surely lighter weigh most, all others least."""
    weights = np.exp(rows.x / temperature)
    sums, without_first = _sums(weights), _sums(np.where(np.arange(weights.shape[1]) == 0, 0.0, weights))
    heavier = np.minimum(rows.not_lighter, k)
    others = np.maximum(np.take_along_axis(sums, heavier, 1) - weights, 0.0)
    others = np.where(rows.x == 0.0, np.take_along_axis(without_first, heavier, 1), others)
    above = others * math.exp(min(rows.spread / temperature, SWING_MAX))
    inside = np.take_along_axis(sums, np.maximum(surely_in, heavier), 1) - np.take_along_axis(sums, heavier, 1)
    below = weights + np.maximum(inside, 0.0)
    slack = RELATIVE * (above + below) + ABSOLUTE * rows.count
    return np.asarray(above * (1.0 - share) + slack < share * below)


def _sums(weights: Reals) -> Reals:
    """Entry i: the total of the i first weights, F64[rows, n + 1]."""
    return np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=1)], axis=1)

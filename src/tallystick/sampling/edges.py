"""The tokens that filters keep when logits are known only within a spread.

Logits are known *within a spread m* when each may be off by m/2, so that each difference is known up to m. A token is
*possibly* kept if some such logits keep it, and *surely* kept if all of them do. Both answers are conservative: a token
that is not `possible` is never kept, a token that is `sure` is always kept. At m = 0 both sets are what the filters
keep, up to the rounding of fixed-point numbers.

Each set holds the tokens of the largest logits down to some rank. A binary search finds that rank.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tallystick.operators.tally.fixed import WEIGHT_BITS
from tallystick.operators.tally.keys import KEYS_PER_LOGIT, logit_scale, rounded_share
from tallystick.sampling.ranks import Ranks, Reals
from tallystick.transcripts.sampler import Sampler

RELATIVE: Final = 2.0**-26
"""Bounds the relative error of a fixed-point weight (measured: 2⁻³⁰) and of a sum in float64."""
ABSOLUTE: Final = 2.0 ** (2 - WEIGHT_BITS)
"""Bounds the rounding of a fixed-point weight, relative to the heaviest weight."""
SWING_MAX: Final = 700.0
"""The largest exponent whose power of e is a finite float64."""


@dataclass(frozen=True)
class FilterEdges:
    """The filters of `sampler`, which is not greedy, over the logits of one row."""

    ranks: Ranks
    sampler: Sampler

    @cached_property
    def temperature(self) -> float:
        """The temperature, but not below the one at which keys reach their largest scale."""
        return temperature_of(self.sampler)

    @cached_property
    def is_filtering(self) -> bool:
        """Whether any filter can take a token away."""
        return self._k < len(self.ranks) or self._share < 1.0 or self._least > -math.inf

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
        above = self._sum(min(heavier, self._k))
        others = float(self._rest[min(heavier, self._k)]) * self._swing(spread)
        slack = RELATIVE * (above + others) + ABSOLUTE * len(self.ranks)
        return self._share > 0.0 and above * (1.0 - self._share) < self._share * others + slack

    def _surely_in_p(self, x: float, largest_other: float, spread: float) -> bool:
        """Least favourable case: all tokens that are not surely lighter weigh most, all others weigh least."""
        if self._share >= 1.0 or x - spread > largest_other:
            return True
        heavier, own = min(self.ranks.at_least(x - spread), self._k), self.weight(x)
        surely_in = self.ranks.above(self._after_k + spread) if self._k < len(self.ranks) else self._k
        rivals = float(self._without_first[heavier]) if x == 0.0 else max(self._sum(heavier) - own, 0.0)
        above = rivals * self._swing(spread)
        below = own + max(self._sum(max(surely_in, heavier)) - self._sum(heavier), 0.0)
        slack = RELATIVE * (above + below) + ABSOLUTE * len(self.ranks)
        return above * (1.0 - self._share) + slack < self._share * below

    def _swing(self, spread: float) -> float:
        return math.exp(min(spread / self.temperature, SWING_MAX))

    def _sum(self, count: int) -> float:
        return float(self.sums[count])

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
    def _k(self) -> int:
        return min(self.sampler.top_k or len(self.ranks), len(self.ranks))

    @cached_property
    def _after_k(self) -> float:
        """The largest logit that top-k leaves out."""
        return self.ranks.at(self._k) if self._k < len(self.ranks) else -math.inf

    @cached_property
    def _share(self) -> float:
        return rounded_share(self.sampler.top_p, "top_p")

    @cached_property
    def _least(self) -> float:
        return least_logit(self.sampler)

    @cached_property
    def _rounding(self) -> float:
        return rounding(self.sampler)


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

"""What filters keep of logits that are known only within a spread.

Two logits are known *within a spread m* when their difference is known up to m: each may be off by m/2. Then a token
is *possibly* kept if some such logits keep it, and *surely* kept if all do. Both are decided from the safe side: one
said not to be possible is impossible, one said to be sure is sure. At m = 0 both are what the filters keep, up to
the rounding of fixed-point numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.operators.tally.fixed import WEIGHT_BITS
from tallystick.operators.tally.sampling import KEYS_PER_LOGIT, MASKED, SHARE_BITS, logit_scale, share_of
from tallystick.sampling.filters import Keys
from tallystick.transcripts.sampler import Sampler

Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

RELATIVE: Final = 2.0**-26
"""More than a fixed-point weight differs from the real one, relative to it (measured: 2⁻³⁰), and float64 sums round."""
ABSOLUTE: Final = 2.0 ** (2 - WEIGHT_BITS)
"""More than a fixed-point weight is rounded by, relative to the heaviest."""


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
        others = (self._sums[self._k] - above) * self._swing(spread)
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
        above = np.maximum(self._sums[heavier] - own, 0.0) * self._swing(spread)
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

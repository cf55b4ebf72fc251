"""Which tokens the filters of several samplers surely keep, for many rows at once: `FilterEdges.sure` over arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tallystick.operators.tally.keys import rounded_share
from tallystick.sampling.edges import ABSOLUTE, RELATIVE, SWING_MAX, least_logit, rounding, temperature_of
from tallystick.transcripts.sampler import Sampler

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def surely_kept(logits: Reals, samplers: Sequence[Sampler], spread: float) -> list[Flags]:
    """For each sampler, the tokens that its filters keep from all logits within `spread`, BOOL[rows, n].

    `logits` are F64[rows, n], falling in every row, −∞ where a row has fewer. Tokens left out of a row would only make
    more of them sure. The samplers are not greedy and differ in their temperature alone.
    """
    there = np.isfinite(logits)
    is_open = there.sum(axis=1) > 1
    if not is_open.any() or not any(_is_filtering(each) for each in samplers):
        return [there for _ in samplers]
    rows = Falling(logits[is_open], spread + max(map(rounding, samplers)))
    found = []
    for sampler in samplers:
        kept = there.copy()
        kept[is_open] = _surely_kept(rows, sampler)
        found.append(kept)
    return found


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
        found = [np.searchsorted(row, edge, "right") for row, edge in zip(rising, edges, strict=True)]
        return np.asarray(np.minimum(np.stack(found), self.count))

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


def _is_filtering(sampler: Sampler) -> bool:
    return bool(sampler.top_k) or sampler.top_p < 1.0 or sampler.min_p > 0.0

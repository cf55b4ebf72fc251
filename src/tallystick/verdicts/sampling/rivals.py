"""Where a sampler of another temperature or filter would choose differently under the same seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally.fixed_point import rounded_share
from tallystick.verdicts.sampling.edges import least_logit, surely_kept
from tallystick.verdicts.sampling.fast_path import USUAL_REACH, Rows
from tallystick.verdicts.sampling.filters import Flags, Integers, Logits, Reals, relative_logits

# For each row, the two tokens whose order a sampler at another temperature would turn round most easily.
#
# Both samplers use the same seed, so the noise of every token is known. The *own* token has the largest score under the
# stated sampler; the *rival* has the largest score of the others under the other one. The verifier's logits alone
# decide which they are, never the claimed token. Only tokens that the filters of both samplers surely keep are
# compared. So an honest provider chooses the rival only if drift turns their order round.

CONTENDERS: Final = 128
"""Tokens compared in a row: those of the largest logits."""
PLAIN: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Greedy choice, as a sampler whose tokens get no noise."""


@dataclass(frozen=True)
class Rivals:
    """The pairs of all rows for one other temperature.

    `own` and `rival` are tokens, I64[rows]. `lead` is the lead of the own token over its rival under the stated
    sampler, `lead_there` under the other one, both F64[rows] in logits and infinite where a row has no such pair.
    """

    own: Integers
    rival: Integers
    lead: Reals
    lead_there: Reals


def rivals(
    logits: Logits,
    sampler: Sampler,
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
    factors: Sequence[float],
    spread: float,
) -> Iterator[Rivals]:
    """The rivals at each of `factors` times the temperature; arguments otherwise as for `choose`.

    Logits are known within `spread`. The sampler is of the Gumbel form and not greedy.
    """
    unknown = np.zeros(len(logits), np.int64)
    rows = Rows(logits, unknown, np.asarray(positions, np.int64), histories, sampler)
    tokens, x = _contenders(rows)
    others = [sampler.model_copy(update={"temperature": sampler.temperature * factor}) for factor in factors]
    (here,) = surely_kept(x, [sampler], spread)
    is_open = here.sum(axis=1) > 1
    noise = np.zeros(x.shape)
    noise[here] = rows.noise(np.nonzero(here)[0], tokens[here])
    for factor, there in zip(factors, surely_kept(x[is_open], others, spread), strict=True):
        kept = here & ~is_open[:, None]
        kept[is_open] = here[is_open] & there
        yield _pairs(tokens, x + noise, x + factor * noise, kept)


def rivals_of_models(
    logits: Logits,
    others: Logits,
    sampler: Sampler,
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
    spread: float,
) -> Rivals:
    """The rivals under the logits of another model, for the same sampler, which is greedy or of the Gumbel form."""
    unknown, places = np.zeros(len(logits), np.int64), np.asarray(positions, np.int64)
    plain = sampler.model_copy(update=PLAIN) if sampler.is_greedy else sampler
    here, there = (Rows(each, unknown, places, histories, plain) for each in (logits, others))
    tokens, x = _contenders(here)
    (kept,) = surely_kept(x, [plain], spread)
    row = np.nonzero(kept)[0]
    noise = np.zeros(len(row)) if sampler.is_greedy else here.noise(row, tokens[kept])
    scores, scores_there = np.zeros(x.shape), np.zeros(x.shape)
    scores[kept], scores_there[kept] = x[kept] + noise, there.penalised(row, tokens[kept]) + noise
    return _pairs(tokens, scores, scores_there, kept)


def _contenders(rows: Rows) -> tuple[Integers, Reals]:
    """The tokens of the largest logits, I64[rows, n], and their logits after the penalty; −∞ where a row has fewer.

    The logits of a row fall.
    """
    likely = [likely_tokens(row, rows.temperature * USUAL_REACH) for row in rows.logits]
    tokens = np.zeros((len(likely), max(map(len, likely), default=0)), np.int64)
    x = np.full(tokens.shape, -np.inf)
    counts = [len(each) for each in likely]
    is_there = np.arange(tokens.shape[1]) < np.array(counts)[:, None]
    tokens[is_there] = np.concatenate(likely)
    x[is_there] = rows.penalised(np.repeat(np.arange(len(likely)), counts), tokens[is_there])
    order = np.argsort(-x, axis=1, kind="stable")
    return np.take_along_axis(tokens, order, 1), np.take_along_axis(x, order, 1)


def likely_tokens(row: Logits | Reals, reach: float) -> Integers:
    """The tokens of one row within `reach` of its largest logit, the `CONTENDERS` largest at most."""
    near = np.flatnonzero(row >= row.max() - reach)
    return near if len(near) <= CONTENDERS else near[np.argpartition(row[near], -CONTENDERS)[-CONTENDERS:]]


def _pairs(tokens: Integers, scores: Reals, scores_there: Reals, kept: Flags) -> Rivals:
    each = np.arange(len(tokens))
    here, there = (np.where(kept, one, -np.inf) for one in (scores, scores_there))
    own = here.argmax(axis=1)
    others = there.copy()
    others[each, own] = -np.inf
    rival = others.argmax(axis=1)
    is_pair = np.isfinite(others[each, rival])
    leads = [np.where(is_pair, s[each, own] - np.where(is_pair, s[each, rival], 0.0), np.inf) for s in (here, there)]
    return Rivals(tokens[each, own], tokens[each, rival], *leads)


# For each row, the token of a sampler with another filter where it would choose differently, under the same seed.
#
# Both samplers have one temperature, so the scores of tokens are the same, and only a filter makes them choose
# differently: the one of the two with the higher score is kept by one sampler and not by the other. The verifier's
# logits alone decide which tokens they are. How far a token lies from the edge of a filter is measured in logits, so
# that drift carries it over the edge about as often as it turns the order of two scores with such a gap.

TINY: Final = 1e-300
AT_ONCE: Final = 64
"""Rows per batch, so that memory does not grow with the length of an answer."""


@dataclass(frozen=True)
class ScoredRow:
    """The contenders of one row, the largest logit first.

    `tokens` are their numbers, I64[n], `logits` F64[n], relative to the largest of all, and `scores` with the noise
    added, F64[n]; `every` are the logits of the whole vocabulary, F32 or F64[V].
    """

    tokens: Integers
    logits: Reals
    scores: Reals
    every: Logits | Reals
    temperature: float

    @cached_property
    def weights(self) -> Reals:
        """exp(l / T) of the contenders."""
        return np.asarray(np.exp(self.logits / self.temperature))

    @cached_property
    def total(self) -> float:
        """The weight of the whole vocabulary; numbers of 32 bits are exact enough for it."""
        return float(
            np.exp(self.every.astype(np.float32, copy=False) / np.float32(self.temperature)).sum(dtype=np.float64)
        )


class KeptTokens:
    """Which contenders of a row the filters of `sampler` keep, and how far each lies from their edges."""

    def __init__(self, row: ScoredRow, sampler: Sampler) -> None:
        self.row, size = row, len(row.every)
        self._k, self._least = min(sampler.top_k or size, size), least_logit(sampler)
        self._share = rounded_share(sampler.top_p, "top_p")
        kept = row.weights[: self._k].sum() if self._k <= len(row.weights) else row.total
        if len(row.weights) < self._k < size:
            heaviest = np.partition(row.every, -self._k)[-self._k :]
            kept = np.exp(heaviest.astype(np.float64) / row.temperature).sum()
        self._weights = np.asarray(row.weights / kept)
        # The share of the weight that heavier tokens have, of what top-k keeps.
        self._before = np.asarray(np.cumsum(self._weights) - self._weights)

    def chosen(self) -> int:
        """The contender that is kept and has the largest score."""
        x, inside = self.row.logits, self._odds(self._share) - self._odds(self._before) > 0.0
        inside &= (np.arange(len(x)) < self._k) & (x >= self._least)
        return int(np.where(inside, self.row.scores, -np.inf).argmax())

    def gaps(self, place: int) -> tuple[float, float, float]:
        """How far a contender lies within top-k, top-p and min-p, in logits; below 0 where it is removed."""
        x = float(self.row.logits[place])
        return self._in_k(place, x), self._in_p(place), x - self._least

    def _in_k(self, place: int, x: float) -> float:
        if self._k == len(self.row.every):
            return math.inf
        edge = self._k if place < self._k else self._k - 1
        return x + float(np.partition(-self.row.every, edge)[edge])

    def _in_p(self, place: int) -> float:
        """The difference of log odds between the share and the weight of heavier tokens, times T.

        One token that changes places with this one may carry it over the edge sooner, if it is heavy.
        """
        if self._share >= 1.0:
            return math.inf
        before, edge = self._before[place], self._odds(self._share)
        sign = 1.0 if edge > self._odds(before) else -1.0
        others = slice(place + 1, None) if sign > 0.0 else slice(0, place)
        turned = sign * (edge - self._odds(before + sign * self._weights[others]))
        sooner = np.maximum(np.abs(self.row.logits[others] - self.row.logits[place]), turned)
        return sign * min(sign * float(edge - self._odds(before)), float(sooner.min(initial=math.inf)))

    def _odds(self, share: float | Reals) -> Reals:
        inside = np.clip(share, TINY, 1.0 - 2.0**-53)
        return np.asarray(self.row.temperature * (np.log(inside) - np.log1p(-inside)))


def filter_rivals(
    logits: Logits,
    sampler: Sampler,
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
    others: Sequence[Sampler],
    drift: float,
) -> list[Rivals]:
    """The rivals of each of `others`, which differ from `sampler` in filters only; other arguments as for `choose`.

    Leads are infinite where both choose the same token. `drift` is that of a logit: it may take a token's lead away by
    removing the token or by turning the scores round, and these probabilities add up.
    """
    pairs_of: list[list[tuple[int, int, float, float]]] = [[] for _ in others]
    for start in range(0, len(logits), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        for row in _rows(logits[part], sampler, positions[part], histories[part]):
            here = KeptTokens(row, sampler)
            for pairs, other in zip(pairs_of, others, strict=True):
                pairs.append(_pair(row, here, KeptTokens(row, other), drift))
    return [Rivals(*map(np.array, zip(*pairs, strict=True))) for pairs in pairs_of]


def _rows(
    logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]
) -> Iterator[ScoredRow]:
    rows = Rows(logits, np.zeros(len(logits), np.int64), np.asarray(positions, np.int64), histories, sampler)
    relative = [_relative(rows, number) for number in range(len(logits))]
    likely = [likely_tokens(every, rows.temperature * USUAL_REACH) for every in relative]
    counts = [len(each) for each in likely]
    noise = rows.noise(np.repeat(np.arange(len(logits)), counts), np.concatenate(likely))
    for every, tokens, added in zip(relative, likely, np.split(noise, np.cumsum(counts)[:-1]), strict=True):
        order = np.argsort(-every[tokens], kind="stable")
        x = every[tokens[order]].astype(np.float64)
        yield ScoredRow(tokens[order], x, x + added[order], every, rows.temperature)


def _relative(rows: Rows, number: int) -> Logits | Reals:
    """The logits of one row minus the largest; those after a penalty, and where some are no numbers, in 64 bits."""
    largest = rows.logits[number].max()
    if rows.penalty == 1.0 and np.isfinite(largest):
        return np.asarray(rows.logits[number] - largest)
    return relative_logits(rows.logits[number], rows.sampler, rows.histories[number])


def _pair(row: ScoredRow, here: KeptTokens, there: KeptTokens, drift: float) -> tuple[int, int, float, float]:
    own, rival = here.chosen(), there.chosen()
    tokens, ahead = (int(row.tokens[own]), int(row.tokens[rival])), float(row.scores[own] - row.scores[rival])
    if own == rival:
        return *tokens, math.inf, math.inf
    if ahead < 0.0:
        return *tokens, -min(here.gaps(rival)), -_either(drift, -ahead, *there.gaps(rival))
    return *tokens, _either(drift, ahead, *here.gaps(own)), min(there.gaps(own))


def _either(drift: float, *gaps: float) -> float:
    """The gap that drift turns round as often as any of these, if each is turned round by itself."""
    often = min(0.5, sum(0.5 * (1.0 - math.tanh(0.5 * gap / drift)) for gap in gaps))
    return drift * (math.log1p(-often) - math.log(max(often, TINY)))

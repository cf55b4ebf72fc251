"""How far a claimed token is from being chosen: the change of logits it needs, and its surprisal."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from tallystick.core.errors import MalformedError
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally import fixed_point
from tallystick.programs.operators.tally.fixed_point import MASKED, WORD_BITS, logit_scale, penalty_factors
from tallystick.programs.random_words import position_words, words_at
from tallystick.verdicts.sampling.choice import check_rows
from tallystick.verdicts.sampling.edges import ABSOLUTE, RELATIVE, SWING_MAX, FilterEdges
from tallystick.verdicts.sampling.fast_path import EVERY_TOKEN, plainly_chosen
from tallystick.verdicts.sampling.filters import (
    ARRAYS,
    Flags,
    Keys,
    Logits,
    Ranks,
    Reals,
    draw_by_sums,
    draw_gumbel,
    filtered,
    keys_at,
    relative_logits,
)
from tallystick.verdicts.tolerance import inner

# How much logits must change for a sampler to choose a claimed token.
#
# The *margin* of a token is the least spread m such that the sampler could choose it from logits that differ from the
# given ones by at most m/2. It is 0 for the token that the sampler chooses, and infinite where no spread is enough. If
# honest logits differ by at most ε, every honest token has a margin of at most 2ε: the *tie band*. A token beyond the
# tie band was not chosen from such logits.
#
# Gumbel form: the claimed token must be possibly kept, and every token whose score l + T·g is larger by more than m
# must be possibly filtered out. Without filters that is DiFR's margin, max(l + T·g) − (l_c + T·g_c) (arXiv 2511.20621,
# §3). Form by sums: the threshold u must lie between the running sums before and after the token; a spread m changes
# the odds of these sums by at most exp(±m/T). Greedy: max l − l_c. Each condition is necessary, so a margin is never
# too large.

ROUNDED: Final = 4
"""Bounds the rounding of a difference of two keys."""
HALVINGS: Final = 30
LEAST_SPREAD: Final = 2.0**-20
"""The smallest spread that is searched for, in units of T."""
DOUBLINGS: Final = 256
"""Enough to go from the least spread of the lowest temperature to beyond the largest difference of logits."""
FEW: Final = 8
"""Words of fewer tokens than this part of the vocabulary are drawn one by one."""
AT_ONCE: Final = 256
"""Rows per batch, so that memory does not grow with the length of an answer."""


def margins(
    logits: Logits,
    tokens: Sequence[int],
    sampler: Sampler,
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
    reach: float = EVERY_TOKEN,
) -> Reals:
    """The margin of each row's claimed token in logits, F64[rows]; arguments otherwise as for `choose`.

    The fast path (`plainly_chosen`) finds rows whose token is the choice; `reach` says how thorough it is.
    Raises `MalformedError` for rows that cannot be chosen from and for a token outside the vocabulary. Of histories
    only their number is checked.
    """
    check_rows(logits, positions, [(token,) for token in tokens])
    assert len(histories) == len(tokens)
    apart = np.zeros(len(tokens))
    for start in range(0, len(tokens), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        rows = logits[part], tokens[part], sampler, positions[part], histories[part]
        for row in np.flatnonzero(~plainly_chosen(*rows, reach)).tolist():
            place = start + row
            apart[place] = margin(logits[place], tokens[place], sampler, positions[place], histories[place])
    return apart


def margin(logits: Logits, token: int, sampler: Sampler, position: int, history: Sequence[int]) -> float:
    """The margin of one row's token, in logits, without checks and without the fast path."""
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
        return 0.0 if draw_by_sums(left, word) == token else _between_sums(x, token, sampler, word)
    kept = np.flatnonzero(left != MASKED)
    if len(kept) and kept[draw_gumbel(left[kept], _words_of(kept, sampler, position, len(x)))] == token:
        return 0.0
    return _largest_score(x, token, sampler, position)


def _words_of(tokens: Keys, sampler: Sampler, position: int, vocabulary: int) -> Keys:
    """The random words of some tokens, I64; many are drawn faster in one stretch."""
    if len(tokens) * FEW > vocabulary:
        return position_words(sampler.seed, position, vocabulary)[tokens]
    return words_at(sampler.seed, np.full(len(tokens), position), tokens)


def _largest_score(x: Reals, token: int, sampler: Sampler, position: int) -> float:
    """The margin in the Gumbel form, before the penalty's stretch.

    It is computed from logits, not from keys: at a low temperature the lowest key cuts off differences. Every token
    ahead by more than a spread must be possibly filtered out. It is enough to check the heaviest of them. So only
    tokens that the filters surely keep without a spread matter, because with a spread fewer are sure.
    """
    ranks = Ranks(x)
    edges, own = FilterEdges(ranks, sampler), float(x[token])
    tokens = np.append(_heaviest(ranks, edges.count_sure(0.0)), token) if edges.is_filtering else np.arange(len(x))
    scale = logit_scale(sampler.temperature)
    noise = fixed_point.gumbel(ARRAYS, _words_of(tokens, sampler, position, len(x)))
    scores = x[tokens] + (noise - ROUNDED) / scale
    if not edges.is_filtering:
        return max(float((scores - scores[token] - ROUNDED / scale).max()), 0.0)
    leads = (scores - scores[-1] - ROUNDED / scale)[:-1]
    leads[tokens[:-1] == token] = -math.inf
    largest_yet = np.maximum.accumulate(leads)

    def is_explained(spread: float) -> bool:
        first = int(np.searchsorted(largest_yet, spread, side="right"))
        return edges.possible(own, spread) and not (first < len(leads) and edges.sure(ranks.at(first), spread))

    return _least(is_explained, edges.temperature)


def _heaviest(ranks: Ranks, count: int) -> Keys:
    """The tokens of the first `count` ranks, and of equal logits, by rank."""
    if not count:
        return np.zeros(0, np.int64)
    heaviest = np.flatnonzero(ranks.logits >= ranks.at(count - 1))
    return heaviest[np.argsort(-ranks.logits[heaviest])]


@dataclass(frozen=True)
class WeightSums:
    """Weights of some tokens, stored relative to the heaviest so that none underflows; the heaviest is exp(`largest`).

    `own` is the weight of the claimed token. Entry i of `others`, F64[V + 1], sums the weights of the tokens among the
    i largest logits, without the claimed token.
    """

    largest: float
    own: float
    others: Reals

    @classmethod
    def of(cls, x: Reals, token: int, are: Flags, edges: FilterEdges) -> Self:
        """The sums over the tokens that `are` marks, BOOL[V], with the claimed `token` among them."""
        ranks, temperature = edges.ranks, edges.temperature
        largest = float(x[are].max())
        others = np.where(are[ranks.tokens] & (ranks.tokens != token), ranks.falling - largest, -math.inf)
        own = math.exp((float(x[token]) - largest) / temperature)
        return cls(largest / temperature, own, np.concatenate([[0.0], np.cumsum(np.exp(others / temperature))]))

    def without_own(self, count: int) -> float:
        """The weight of those among the `count` largest logits, without the claimed token."""
        return float(self.others[count]) * math.exp(self.largest)

    def raised(self, count: int, by: float) -> float:
        """The weight of those among the `count` largest logits and of the claimed token, times exp(`by`)."""
        return (float(self.others[count]) + self.own) * math.exp(min(self.largest + by, SWING_MAX))


def _between_sums(x: Reals, token: int, sampler: Sampler, word: int) -> float:
    """The margin in the form by sums, before the penalty's stretch; `word` is the random word of the position.

    A spread m can lower the odds of the sum before the token by exp(m/T), and raise those of the sum up to it as much.
    """
    edges, own, places = FilterEdges(Ranks(x), sampler), float(x[token]), np.arange(len(x))
    leading: float = ((word % 2**64) >> (64 - WORD_BITS)) / 2**WORD_BITS  # the draw, from 0 to 1
    until, since = (WeightSums.of(x, token, are, edges) for are in (places <= token, places >= token))

    def is_explained(spread: float) -> bool:
        if not edges.possible(own, spread):
            return False
        possible, sure, swing = edges.count_possible(spread), edges.count_sure(spread), spread / edges.temperature
        slack = ABSOLUTE * len(x) + RELATIVE * float(edges.sums[possible])
        reaches = until.raised(possible, swing) * (1.0 - leading) + slack >= leading * since.without_own(sure)
        starts = until.without_own(sure) * (1.0 - leading) <= leading * since.raised(possible, swing) + slack
        return reaches and starts

    return _least(is_explained, edges.temperature)


def _least(is_explained: Callable[[float], bool], scale: float) -> float:
    """The least spread for which `is_explained`, to a part in 2³⁰ of its octave; infinite if there is none.

    If a spread explains the token, every larger one does. So a binary search finds the octave too.
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
    """The largest factor by which the repetition penalty stretches a difference of logits, and so the tie band."""
    return max(1.0, *penalty_factors(sampler.repetition_penalty))


# The surprisal of claimed tokens under the claimed sampler, from the verifier's logits.
#
# A token's *surprisal* is −ln p(token) under penalty, temperature and filters; its expectation is the entropy of the
# row. No seed is needed. A token at a filter's edge may be removed here and kept on another numerical stack. Then its
# *ceiling*, the largest probability that honest logits could give it, is above 0, and the token is not impossible.

UNFILTERED: Final = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
EDGE: Final = 2.0**-10
"""The share of an alternative's probability outside its filters: honest tokens at the edges must not be impossible."""
TEMPERATURES: Final = (0.5, 0.7, 0.85, 1.2, 1.43, 2.0)
FOREIGN: Final = (0.1, 0.5)
NONE_LEFT: Final = "logits: a row leaves no token to choose"


@dataclass(frozen=True)
class Surprisals:
    """F64 per row, in nats: surprisal of the claimed token, its expectation and variance, and −ln of its ceiling.

    `claimed` is infinite if the verifier's logits filter the token out, `least` if no honest logits would keep it.
    """

    claimed: Reals
    expected: Reals
    variance: Reals
    least: Reals


def surprisals(
    logits: Logits,
    tokens: Sequence[int],
    sampler: Sampler,
    histories: Sequence[Sequence[int]],
    spread: float = 0.0,
) -> Surprisals:
    """The surprisal of each row's claimed token; honest logits differ within `spread`; no greedy sampler.

    Raises `MalformedError` for rows that cannot be chosen from and for a token outside the vocabulary.
    """
    check_rows(logits, range(len(tokens)), [(token,) for token in tokens])
    assert not sampler.is_greedy, "a greedy sampler draws nothing"
    rows = [_row(*each, sampler, spread) for each in zip(logits, tokens, histories, strict=True)]
    return Surprisals(*np.array(rows, np.float64).reshape(len(rows), 4).T)


def log_ratios(
    logits: Logits,
    tokens: Sequence[int],
    sampler: Sampler,
    histories: Sequence[Sequence[int]],
    spread: float = 0.0,
    outside: float = 0.0,
) -> Mapping[str, tuple[Reals, Reals]]:
    """Per alternative, F64[rows] each: ln q(c)/p̄(c) and ln p(c)/q̄(c), before any discount for changed weights.

    p is the distribution of the claimed sampler and q that of the alternative, both over all tokens; p̄ and q̄ are
    their ceilings. So the mean of each ratio is at most 1 under the hypothesis that it argues against
    (`verdicts.evidence`). `outside` is the probability that honest logits lie outside `spread`. Alternatives are
    other temperatures, no filters, and a share of tokens drawn uniformly from the vocabulary.
    """
    rows = [_ratios(*each, sampler, spread, outside) for each in zip(logits, tokens, histories, strict=True)]
    pairs = {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]} if rows else {}
    return {name: (each[:, 0], each[:, 1]) for name, each in pairs.items()}


def _row(
    logits: Logits, token: int, history: Sequence[int], sampler: Sampler, spread: float
) -> tuple[float, float, float, float]:
    x = relative_logits(logits, sampler, history)
    weights = fixed_point.exp2(ARRAYS, filtered(keys_at(x, sampler), sampler)).astype(np.float64)
    if not weights.any():
        raise MalformedError(NONE_LEFT)
    p = weights / weights.sum()
    inside = p[p > 0]
    surprise = -np.log(inside)
    expected = inner(inside, surprise)
    variance = inner(inside, (surprise - expected) ** 2)
    return (
        _surprisal(p[token]),
        expected,
        variance,
        _surprisal(_ceiling(FilterEdges(Ranks(x), sampler), float(x[token]), spread)),
    )


def _ratios(
    logits: Logits, token: int, history: Sequence[int], sampler: Sampler, spread: float, outside: float
) -> dict[str, tuple[float, float]]:
    x = relative_logits(logits, sampler, history)
    own, ranks = float(x[token]), Ranks(x)
    if ranks.at(0) == -math.inf:
        raise MalformedError(NONE_LEFT)
    p, ceiling = _of(FilterEdges(ranks, sampler), own, spread)
    others = {name: _of(FilterEdges(ranks, other), own, spread) for name, other in _alternatives(sampler)}
    for share in FOREIGN:
        anywhere = share / len(logits)
        others[f"foreign x{share:g}"] = (1 - share) * p + anywhere, (1 - share) * ceiling + anywhere
    return {
        name: (_log(q) - _log(ceiling + outside), _log(p) - _log(most + outside)) for name, (q, most) in others.items()
    }


def _alternatives(sampler: Sampler) -> Iterator[tuple[str, Sampler]]:
    for factor in TEMPERATURES:
        yield f"temperature x{factor:g}", sampler.model_copy(update={"temperature": sampler.temperature * factor})
    yield "no filters", sampler.model_copy(update=UNFILTERED)


def _of(edges: FilterEdges, x: float, spread: float) -> tuple[float, float]:
    """The probability of the token of logit x, with a share of `EDGE` outside the filters; and its ceiling inside."""
    own, sums = edges.weight(x), edges.sums
    everywhere = own / float(sums[-1])
    if not edges.is_filtering:
        return everywhere, everywhere
    share = own / float(sums[edges.count_possible(0.0)]) if edges.possible(x, 0.0) else 0.0
    return (1 - EDGE) * share + EDGE * everywhere, _ceiling(edges, x, spread)


def _ceiling(edges: FilterEdges, x: float, spread: float) -> float:
    """The weight of the token of logit x divided by that of all surely kept tokens and itself; 0 if surely removed."""
    own = edges.weight(x)
    if not edges.is_filtering:
        return own / float(edges.sums[-1])
    if not edges.possible(x, spread) or own == 0.0:
        return 0.0
    sure = float(edges.sums[edges.count_sure(spread)])
    return own / (sure if edges.sure(x, spread) else sure + own)


def _log(x: float) -> float:
    with np.errstate(divide="ignore"):
        return float(np.log(x))


def _surprisal(p: float) -> float:
    return -_log(p) + 0.0

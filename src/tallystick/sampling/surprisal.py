"""The surprisal of claimed tokens under the claimed sampler, at the verifier's logits.

A token's *surprisal* is −ln p(token) under penalty, temperature and filters; its expectation is the entropy of the row.
No seed is needed. A token at a filter's edge may be out here and in on another numerical stack: its `ceiling`, the
most that honest logits could give it, is above 0 then, and it is not impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tallystick.errors import MalformedError
from tallystick.operators.tally import fixed
from tallystick.sampling.checks import check_rows
from tallystick.sampling.choice import keys
from tallystick.sampling.edges import FilterEdges
from tallystick.sampling.filters import Keys, Logits, filtered, keys_at, relative_logits
from tallystick.sampling.plain import ARRAYS
from tallystick.sampling.ranks import Ranks, Reals
from tallystick.transcripts.sampler import Sampler

UNFILTERED: Final = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
EDGE: Final = 2.0**-10
"""The share of an alternative's probability that lies outside its filters, for honest tokens at their edges."""
TEMPERATURES: Final = (0.5, 0.7, 0.85, 1.2, 1.43, 2.0)
FOREIGN: Final = (0.1, 0.5)
NONE_LEFT: Final = "logits: a row leaves no token to choose"


@dataclass(frozen=True)
class Surprisals:
    """Per row, F64: of the claimed token in nats, its expectation and variance, and −ln of the token's ceiling.

    `claimed` is infinite where the token is filtered out here, `least` where no honest logits would keep it.
    """

    claimed: Reals
    expected: Reals
    variance: Reals
    least: Reals


def probabilities(logits: Logits, sampler: Sampler, histories: Sequence[Sequence[int]]) -> Reals:
    """What each token is drawn with, F64[rows, V]; all on one token for a greedy sampler. Raises as `choose`."""
    left = keys(logits, sampler, [0] * len(logits), histories)
    if sampler.is_greedy:
        return np.asarray(np.arange(logits.shape[1]) == left.argmax(axis=1)[:, None], np.float64)
    weights = fixed.exp2(ARRAYS, left).astype(np.float64)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def surprisals(
    logits: Logits,
    tokens: Sequence[int],
    sampler: Sampler,
    histories: Sequence[Sequence[int]],
    spread: float = 0.0,
) -> Surprisals:
    """The surprisal of each row's claimed token; honest logits differ within `spread`, and the sampler draws.

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
    """Each alternative's ln q(c)/p̄(c), and ln p(c)/q̄(c), per row and before any discount for moved weights.

    q and p are distributions over all tokens; p̄ and q̄ ceilings of the claimed sampler and of the alternative, so that
    both ratios have mean 1 at most under what they are against (`tolerances.likelihoods`). `outside` is the
    probability with which honest logits may lie outside `spread`. Alternatives are other temperatures, no filters, and
    part of the tokens from somewhere else, anywhere in the vocabulary alike.
    """
    rows = [_ratios(*each, sampler, spread, outside) for each in zip(logits, tokens, histories, strict=True)]
    return {name: _both([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _row(
    logits: Logits, token: int, history: Sequence[int], sampler: Sampler, spread: float
) -> tuple[float, float, float, float]:
    x = relative_logits(logits, sampler, history)
    p = _normalised(filtered(keys_at(x, sampler), sampler))
    inside = p[p > 0]
    surprise = -np.log(inside)
    expected = float(inside @ surprise)
    variance = float(inside @ (surprise - expected) ** 2)
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
    """The probability of the token of logit x, a little of which lies outside the filters, and its ceiling inside."""
    own, sums = edges.weight(x), edges.sums
    everywhere = own / float(sums[-1])
    if not edges.is_filtering:
        return everywhere, everywhere
    share = own / float(sums[edges.count_possible(0.0)]) if edges.possible(x, 0.0) else 0.0
    return (1 - EDGE) * share + EDGE * everywhere, _ceiling(edges, x, spread)


def _ceiling(edges: FilterEdges, x: float, spread: float) -> float:
    """The share of the token of logit x in what is surely kept, with it; 0 where it is surely out."""
    own = edges.weight(x)
    if not edges.is_filtering:
        return own / float(edges.sums[-1])
    if not edges.possible(x, spread) or own == 0.0:
        return 0.0
    sure = float(edges.sums[edges.count_sure(spread)])
    return own / (sure if edges.sure(x, spread) else sure + own)


def _normalised(keys: Keys) -> Reals:
    weights = fixed.exp2(ARRAYS, keys).astype(np.float64)
    if not weights.any():
        raise MalformedError(NONE_LEFT)
    return np.asarray(weights / weights.sum())


def _both(pairs: Sequence[tuple[float, float]]) -> tuple[Reals, Reals]:
    against, in_favour = np.array(pairs, np.float64).T
    return against, in_favour


def _log(x: float) -> float:
    with np.errstate(divide="ignore"):
        return float(np.log(x))


def _surprisal(p: float) -> float:
    return -_log(p) + 0.0

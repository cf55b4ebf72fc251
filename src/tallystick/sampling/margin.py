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
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.operators.tally.sampling import KEYS_PER_LOGIT, MASKED, WORD_BITS, logit_scale, penalty_factors
from tallystick.sampling.choose import check_rows
from tallystick.sampling.draw import draw_by_sums, draw_gumbel, draw_largest, noisy
from tallystick.sampling.edges import ABSOLUTE, RELATIVE, Edges
from tallystick.sampling.filters import Keys, Logits, filtered, keys_of
from tallystick.sampling.glance import EVERY_TOKEN, chosen_at_a_glance
from tallystick.sampling.stream import position_words
from tallystick.transcripts.sampler import Sampler

Reals = npt.NDArray[np.float64]

ROUNDED: Final = 4
"""More than a difference of two keys is rounded by."""
HALVINGS: Final = 30
DOUBLINGS: Final = 60


def margins(
    logits: Logits,
    tokens: Sequence[int],
    sampler: Sampler,
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
    reach: float = EVERY_TOKEN,
) -> Reals:
    """The margin of each row's claimed token in logits, F64[rows]; arguments otherwise as for `choose`.

    Rows whose token is the choice are told apart at a glance, at little cost (`glance`); `reach` says how thoroughly.
    Raises `MalformedError` for rows that cannot be chosen from and for a token outside the vocabulary. Of histories
    only their number is checked.
    """
    check_rows(logits, positions, [(token,) for token in tokens])
    assert len(histories) == len(tokens)
    is_chosen = chosen_at_a_glance(logits, tokens, sampler, positions, histories, reach)
    found = np.zeros(len(tokens))
    for row in np.flatnonzero(~is_chosen).tolist():
        found[row] = margin(logits[row], tokens[row], sampler, positions[row], histories[row])
    return found


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

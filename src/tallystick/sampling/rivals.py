"""For each row, the two tokens whose order a sampler at another temperature would turn round most easily.

Both samplers use the same seed, so the noise of every token is known. The *own* token has the largest score under the
stated sampler; the *rival* has the largest score of the others under the other one. The verifier's logits alone decide
which they are, never the claimed token. Only tokens that the filters of both samplers surely keep are compared. So an
honest provider chooses the rival only if drift turns their order round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tallystick.sampling.edges_of_rows import surely_kept
from tallystick.sampling.fast_path import USUAL_REACH, Flags, Integers, Reals, Rows
from tallystick.sampling.filters import Logits
from tallystick.transcripts.sampler import Sampler

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
    found = [likely_tokens(row, rows.temperature * USUAL_REACH) for row in rows.logits]
    tokens = np.zeros((len(found), max(map(len, found), default=0)), np.int64)
    x = np.full(tokens.shape, -np.inf)
    counts = [len(each) for each in found]
    is_there = np.arange(tokens.shape[1]) < np.array(counts)[:, None]
    tokens[is_there] = np.concatenate(found)
    x[is_there] = rows.penalised(np.repeat(np.arange(len(found)), counts), tokens[is_there])
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

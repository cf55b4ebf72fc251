"""Logits as the sampler's adjustments leave them: penalties on the answer's tokens, biases, and tokens that are out.

`spec/sampler.md` specifies them, under "Adjustments". They are added to logits, so the margin of a token in adjusted
logits is its margin in those of the model: no tie band widens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError, UsageError
from tallystick.sampling.filters import Logits, plain_logits
from tallystick.transcripts.sampler import Sampler
from tallystick.workloads.language_model import TokenMasks

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Adjustment:
    """`offsets` F64[k] are added to the logits of `tokens` I64[k]; tokens that are `out`, BOOL[V], become −∞."""

    tokens: Integers
    offsets: Reals
    out: Flags

    @property
    def is_forced(self) -> bool:
        """Whether at most one token can be chosen."""
        return int(np.count_nonzero(~self.out)) <= 1


def adjustment_of(
    sampler: Sampler, position: int, history: Sequence[int], vocabulary: int, mask: Flags | None = None
) -> Adjustment:
    """What the sampler does to a row of logits; `history` ends with the `position` tokens of the answer so far.

    `mask`, BOOL[V], has the tokens that the sampler's grammar allows. Raises `MalformedError` for a token outside the
    vocabulary, and for a shorter history; `UsageError` for a grammar without a mask.
    """
    if sampler.grammar is not None and mask is None:
        raise UsageError("a sampler with a grammar chooses no token without the mask of its grammar")
    if sampler.largest_token >= vocabulary:
        raise MalformedError(f"sampler: token {sampler.largest_token} is outside the vocabulary of {vocabulary}")
    by_token = np.zeros(vocabulary)
    if sampler.presence_penalty or sampler.frequency_penalty:
        if len(history) < position:
            raise MalformedError(f"histories: {len(history)} tokens before position {position}")
        answer = np.asarray(history[len(history) - position :], np.int64)
        times = np.bincount(answer, minlength=vocabulary).astype(np.float64)
        penalty = np.float64(np.float32(sampler.frequency_penalty)) * times
        by_token -= np.where(times > 0, penalty + np.float64(np.float32(sampler.presence_penalty)), 0.0)
    if sampler.logit_bias:
        tokens, biases = zip(*sampler.logit_bias, strict=True)
        by_token[list(tokens)] += np.asarray(biases, np.float32).astype(np.float64)
    touched = np.flatnonzero(by_token)
    out = _out(sampler, position, vocabulary)
    return Adjustment(touched, by_token[touched], out if mask is None else out | ~mask)


def adjusted_row(logits: Logits, adjustment: Adjustment) -> Logits:
    """Logits F32[V] after an adjustment; the argument is not changed."""
    row = logits.copy()
    row[adjustment.tokens] = (plain_logits(row[adjustment.tokens]) + adjustment.offsets).astype(np.float32)
    row[adjustment.out] = -np.inf
    return row


def adjusted(logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]) -> Logits:
    """Logits F32[rows, V] after the sampler's adjustments; the argument itself if there are none."""
    if not sampler.adjustments:
        return logits
    places = zip(logits, positions, histories, strict=True)
    rows = [adjusted_row(row, adjustment_of(sampler, place, past, len(row))) for row, place, past in places]
    return np.stack(rows) if rows else logits


def adjusted_answer(
    logits: Logits, sampler: Sampler, prompt: Sequence[int], answer: Sequence[int], masks: TokenMasks | None = None
) -> tuple[Logits, int]:
    """The adjusted logits F32[n, V] of an answer's tokens, and the number of rows in which no token had a choice.

    After a token that the grammar does not allow, its masks say nothing any more.
    """
    tokens, rows, forced = [*prompt, *answer], np.empty_like(logits), 0
    for place, row in enumerate(logits):
        mask = None if masks is None else masks.allowed()
        if mask is not None and not mask[answer[place]]:
            rows[place:] = logits[place:]
            rows[place, answer[place]] = -np.inf
            break
        found = adjustment_of(sampler, place, tokens[: len(prompt) + place], len(row), mask)
        rows[place] = adjusted_row(row, found)
        forced += found.is_forced
        if masks is not None:
            masks.take(answer[place])
    return rows, forced


def _out(sampler: Sampler, position: int, vocabulary: int) -> Flags:
    out = np.full(vocabulary, bool(sampler.allowed_token_ids))
    out[list(sampler.allowed_token_ids)] = False
    out[list(sampler.bad_token_ids)] = True
    if position < sampler.min_tokens:
        out[list(sampler.end_token_ids)] = True
    return out

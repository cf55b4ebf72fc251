"""The token that a sampler chooses: a pure function of logits, settings, seed, position and history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tallystick.core.errors import MalformedError, UsageError
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally.fixed_point import VOCABULARY_MAX
from tallystick.programs.random_words import position_words
from tallystick.verdicts.language_model import TokenMasks
from tallystick.verdicts.sampling.filters import (
    NONE_LEFT,
    Flags,
    Integers,
    Logits,
    Reals,
    draw_by_sums,
    draw_gumbel,
    draw_largest,
    filtered,
    keys_of,
    plain_logits,
)

# Checks before a token is chosen: logits, positions and histories fit together, and the sampler has a known form.

POSITION_MAX: Final = 1 << 40


def check_form(sampler: Sampler) -> None:
    """Raise `UsageError` unless the logits determine the token."""
    if not sampler.is_canonical:
        raise UsageError("a sampler of unknown form chooses no token: how it draws is not stated")


def check_rows(logits: Logits, positions: Sequence[int], histories: Sequence[Sequence[int]]) -> None:
    """Raise `MalformedError` unless logits are F32[rows, vocabulary] and positions and histories fit them."""
    if logits.dtype != np.float32 or logits.ndim != 2:
        raise MalformedError(f"logits: {logits.dtype}{list(logits.shape)}, not float32[rows, vocabulary]")
    check_places(logits.shape, positions, histories)


def check_places(shape: Sequence[int], positions: Sequence[int], histories: Sequence[Sequence[int]]) -> None:
    """Raise `MalformedError` unless positions and histories fit logits of this shape, [rows, vocabulary]."""
    rows, vocabulary = shape
    if not 1 <= vocabulary <= VOCABULARY_MAX:
        raise MalformedError(f"logits: a vocabulary of {vocabulary}, not of 1 to {VOCABULARY_MAX}")
    if not rows == len(positions) == len(histories):
        raise MalformedError(f"logits: {rows} rows, {len(positions)} positions, {len(histories)} histories")
    if any(not 0 <= position < POSITION_MAX for position in positions):
        raise MalformedError(f"positions: outside 0 to {POSITION_MAX - 1}")
    if any(len(history) and not 0 <= min(history) <= max(history) < vocabulary for history in histories):
        raise MalformedError(f"histories: a token outside the vocabulary of {vocabulary}")


# Logits as the sampler's adjustments leave them: penalties on the answer's tokens, biases, and tokens that are out.
#
# `spec/sampler.md` specifies them, under "Adjustments". They are added to logits, so the margin of a token in adjusted
# logits is its margin in those of the model: no tie band widens.


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
    out = np.full(vocabulary, bool(sampler.allowed_token_ids))
    out[list(sampler.allowed_token_ids)] = False
    out[list(sampler.bad_token_ids)] = True
    if position < sampler.min_tokens:
        out[list(sampler.end_token_ids)] = True
    return Adjustment(touched, by_token[touched], out if mask is None else out | ~mask)


def adjusted_row(logits: Logits, adjustment: Adjustment) -> Logits:
    """Logits F32[V] after an adjustment; the argument is not changed."""
    row = logits.copy()
    row[adjustment.tokens] = (plain_logits(row[adjustment.tokens]) + adjustment.offsets).astype(np.float32)
    row[adjustment.out] = -np.inf
    return row


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
        adjustment = adjustment_of(sampler, place, tokens[: len(prompt) + place], len(row), mask)
        rows[place] = adjusted_row(row, adjustment)
        forced += adjustment.is_forced
        if masks is not None:
            masks.take(answer[place])
    return rows, forced


# The token that a sampler chooses from logits, a pure function of logits, settings, seed, position and history.
#
# The choice is specified in `spec/sampler.md`, and defined by `programs.operators.tally.sampling`.


def choose(logits: Logits, sampler: Sampler, positions: Sequence[int], histories: Sequence[Sequence[int]]) -> Integers:
    """The chosen token of every row, I64[rows].

    Args:
        logits: F32[rows, V], V at most 2²⁰; NaN counts as −∞, +∞ as the largest F32.
        sampler: settings and seed.
        positions: the position of each row in its answer, from 0.
        histories: the tokens before each row, prompt and answer; only penalties use them.

    Raises `MalformedError` for logits, positions or tokens outside their range, and for a row where no token is left;
    `UsageError` for a sampler of unknown form.
    """
    check_rows(logits, positions, histories)
    check_form(sampler)
    rows = zip(logits, positions, histories, strict=True)
    tokens = np.array([choose_one(row, sampler, position, history) for row, position, history in rows], np.int64)
    if NONE_LEFT in tokens:
        raise MalformedError(f"logits: row {int(np.argmin(tokens))} leaves no token to choose")
    return tokens


def choose_one(
    logits: Logits, sampler: Sampler, position: int, history: Sequence[int], mask: Flags | None = None
) -> int:
    """The token of one row, F32[V], without checks, under the `mask` of a grammar; −1 where none is left."""
    if sampler.adjustments:
        logits = adjusted_row(logits, adjustment_of(sampler, position, history, len(logits), mask))
    left = filtered(keys_of(logits, sampler, history), sampler)
    if sampler.is_greedy:
        return draw_largest(left)
    if sampler.form == "cdf":
        return draw_by_sums(left, int(position_words(sampler.seed, position, 1)[0]))
    return draw_gumbel(left, position_words(sampler.seed, position, len(left)))

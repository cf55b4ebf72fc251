"""Checks before a token is chosen: logits, positions and histories fit together, and the sampler has a known form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tallystick.errors import MalformedError, UsageError
from tallystick.operators.tally.keys import VOCABULARY_MAX
from tallystick.sampling.filters import Logits
from tallystick.transcripts.sampler import Sampler

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

"""A stand-in for a language model: logits from a generator, with the entropy of text and none of its meaning.

Normal logits of standard deviation σ over V tokens have an entropy near ln V − σ²/2 nats where that is positive. Each
context draws its own σ, so that some tokens are all but certain and some are open, as in text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tallystick.verdicts.language_model import Rows
from tests.support.attacks.sampling.generation import NextLogits

CONTEXT = 2


def synthetic_model(seed: int, vocabulary: int = 512, spreads: tuple[float, float] = (2.0, 6.0)) -> NextLogits:
    """Next logits that depend on the last two tokens; the same seed is the same model."""

    def next_logits(tokens: Sequence[int]) -> Rows:
        rng = np.random.default_rng([seed, len(tokens[-CONTEXT:]), *tokens[-CONTEXT:]])
        spread = rng.uniform(*spreads)
        return (spread * rng.standard_normal(vocabulary)).astype(np.float32)

    return next_logits


def drifted(model: NextLogits, seed: int, largest: float) -> NextLogits:
    """The same model on another numerical stack: every logit off by `largest` at most, the same way each time."""

    def next_logits(tokens: Sequence[int]) -> Rows:
        logits = model(tokens)
        rng = np.random.default_rng([seed, 1, len(tokens[-CONTEXT:]), *tokens[-CONTEXT:]])
        return (logits + rng.uniform(-largest, largest, logits.shape)).astype(np.float32)

    return next_logits

"""The choice by the operators' definitions alone, on the arrays of any library: what faster ways are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.core.tensors import Tensor
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.tally import sampling
from tallystick.programs.operators.values import Value, Values
from tallystick.programs.random_words import seed_words
from tallystick.verdicts.sampling.filters import Logits

REFERENCE: Final = Values(NUMPY)


def keys_by_definition(
    logits: Logits, sampler: Sampler, histories: Sequence[Sequence[int]], algebra: Values = REFERENCE
) -> Value:
    """Keys of kept tokens, I64[rows, V], as an array of the algebra."""
    x = algebra.load(Tensor.of(logits))
    if sampler.repetition_penalty != 1.0:
        seen = algebra.load(Tensor.of(seen_tokens(histories, logits.shape[1])))
        x = sampling.repetition_penalty(algebra, x, seen, sampler.repetition_penalty)
    keys = sampling.scale_logits(algebra, x, sampler.temperature)
    if sampler.is_greedy:
        return keys
    keys = sampling.keep_top_k(algebra, keys, sampler.top_k)
    return sampling.keep_min_p(algebra, sampling.keep_top_p(algebra, keys, sampler.top_p), sampler.min_p)


def choose_by_definition(
    logits: Logits,
    sampler: Sampler,
    positions: Sequence[int],
    histories: Sequence[Sequence[int]],
    algebra: Values = REFERENCE,
) -> npt.NDArray[np.int64]:
    """The chosen token of every row, I64[rows], −1 where none is left; arguments as for `choose`, unchecked."""
    keys = keys_by_definition(logits, sampler, histories, algebra)
    seed = algebra.load(Tensor.of(seed_words(sampler.seed)))
    position = algebra.load(Tensor.of(np.array(positions, np.int64)))
    if sampler.form == "cdf" and not sampler.is_greedy:
        sums = sampling.cumulative_weights(algebra, sampling.softmax_weights(algebra, keys))
        tokens = sampling.select_token(algebra, sums, seed, position)
    else:
        scores = keys if sampler.is_greedy else sampling.add_gumbel_noise(algebra, keys, seed, position)
        tokens = sampling.select_largest(algebra, scores)
    return np.array(algebra.library.storage(tokens.array), np.int64)


def seen_tokens(histories: Sequence[Sequence[int]], vocabulary: int) -> npt.NDArray[np.bool_]:
    """The tokens of each row's history, BOOL[rows, V]."""
    seen = np.zeros((len(histories), vocabulary), np.bool_)
    for row, history in zip(seen, histories, strict=True):
        row[np.asarray(history, np.int64)] = True
    return seen

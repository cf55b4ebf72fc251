"""Speculative decoding, honest and sloppy (I-13).

Leviathan, Kalman & Matias, *Fast inference from transformers via speculative decoding* (2023), §2.3 and appendix A.5: a
draft's token x is kept with probability min(1, p(x) / (l·q(x))), else one of (p − l·q)₊ is drawn. At lenience l = 1 the
tokens are distributed as the target's; below, more of the draft is kept and they are not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.language_model import Rows
from tests.support.attacks.sampling.generation import NextLogits
from tests.support.sampler_rows import probabilities

Probabilities = np.ndarray[Any, np.dtype[np.float64]]


def speculate(
    target: NextLogits,
    draft: NextLogits,
    prompt: Sequence[int],
    sampler: Sampler,
    count: int,
    rng: np.random.Generator,
    lenience: float = 1.0,
    end_tokens: Collection[int] = (),
) -> list[int]:
    """Up to `count` tokens from `target`, proposed by `draft` one at a time; `sampler` settles both distributions."""
    answer: list[int] = []
    while len(answer) < count and not (answer and answer[-1] in end_tokens):
        history = [*prompt, *answer]
        p = _distribution(target(history), sampler, history)
        q = _distribution(draft(history), sampler, history)
        answer.append(_next(p, q, rng, lenience))
    return answer


def _next(p: Probabilities, q: Probabilities, rng: np.random.Generator, lenience: float) -> int:
    proposed = _draw(q, rng)
    if rng.random() * lenience * q[proposed] < p[proposed]:
        return proposed
    rest = np.maximum(p - lenience * q, 0.0)
    return _draw(rest / rest.sum(), rng)


def _draw(p: npt.NDArray[np.float64], rng: np.random.Generator) -> int:
    return int(rng.choice(p.size, p=p))


def _distribution(logits: Rows, sampler: Sampler, history: Sequence[int]) -> Probabilities:
    return np.asarray(probabilities(logits[None], sampler, [history])[0])

"""An honest answer, token by token, and the logits that a verifier sees of any answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.language_model import Rows
from tallystick.verdicts.sampling.choice import choose

NextLogits: TypeAlias = Callable[[Sequence[int]], Rows]
"""From the tokens so far to the logits of the next one, F32 [vocabulary]."""


def generate(
    next_logits: NextLogits,
    prompt: Sequence[int],
    sampler: Sampler,
    count: int,
    end_tokens: Collection[int] = (),
    forced: Mapping[int, int] | None = None,
) -> list[int]:
    """Up to `count` tokens drawn by `sampler`, an end token being the last; `forced` ones stand where they are put."""
    answer: list[int] = []
    while len(answer) < count and not (answer and answer[-1] in end_tokens):
        place = len(answer)
        history = [*prompt, *answer]
        drawn = choose(next_logits(history)[None], sampler, [place], [history])[0]
        answer.append((forced or {}).get(place, int(drawn)))
    return answer


def teacher_forced(next_logits: NextLogits, prompt: Sequence[int], answer: Sequence[int]) -> Rows:
    """The logits that each token of the answer was chosen from, F32 [tokens, vocabulary]."""
    return np.stack([next_logits([*prompt, *answer[:place]]) for place in range(len(answer))])

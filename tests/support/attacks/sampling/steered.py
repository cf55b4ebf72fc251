"""Best of n: the provider draws several answers and returns the one it likes (I-09)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tallystick.formats.receipt import Sampler
from tests.support.attacks.sampling.generation import NextLogits, generate


def steer(
    next_logits: NextLogits,
    prompt: Sequence[int],
    sampler: Sampler,
    count: int,
    seeds: Sequence[int],
    liking: Callable[[Sequence[int]], float],
    end_tokens: Collection[int] = (),
) -> tuple[int, list[int]]:
    """The seed whose answer the provider likes best, and that answer.

    Where the seed is the provider's to state, it states this one, and every check of tokens passes.
    """
    answers = {
        seed: generate(next_logits, prompt, sampler.model_copy(update={"seed": seed}), count, end_tokens)
        for seed in seeds
    }
    return max(answers.items(), key=lambda each: liking(each[1]))

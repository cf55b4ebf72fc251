"""Tokens of the provider's own among those of the model: an advertisement, a leak, a watermark (I-07)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tallystick.formats.receipt import Sampler
from tests.support.attacks.sampling.generation import NextLogits, generate


def inject(
    next_logits: NextLogits,
    prompt: Sequence[int],
    sampler: Sampler,
    count: int,
    tokens: Mapping[int, int],
    end_tokens: Collection[int] = (),
) -> list[int]:
    """An honest answer but for `tokens` by place, each of which the model then continues from."""
    return generate(next_logits, prompt, sampler, count, end_tokens, tokens)


def post_edit(answer: Sequence[int], tokens: Mapping[int, int]) -> list[int]:
    """A finished answer with `tokens` put in by place; what follows them was drawn as if they were not there."""
    return [tokens.get(place, token) for place, token in enumerate(answer)]

"""The promised model under settings other than those stated: temperature, top-p, seed (I-08)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tallystick.formats.receipt import Sampler
from tests.support.attacks.sampling.generation import NextLogits, generate


def resample(
    next_logits: NextLogits,
    prompt: Sequence[int],
    sampler: Sampler,
    count: int,
    end_tokens: Collection[int] = (),
    **changes: Any,
) -> list[int]:
    """An answer drawn by `sampler` with `changes`, such as `temperature=1.0` or `seed=8`."""
    return generate(next_logits, prompt, sampler.model_copy(update=changes), count, end_tokens)

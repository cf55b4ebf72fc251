"""The text of a cheap model, fed through the promised one so that its hidden states are honest (I-06)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tallystick.formats.receipt import Sampler
from tallystick.verdicts.language_model import Rows
from tests.support.attacks.sampling.generation import NextLogits, generate, teacher_forced


def teacher_force_foreign(
    promised: NextLogits,
    cheap: NextLogits,
    prompt: Sequence[int],
    sampler: Sampler,
    count: int,
    end_tokens: Collection[int] = (),
) -> tuple[list[int], Rows]:
    """The cheap model's answer under the same sampler and seed, and the promised model's logits of it."""
    answer = generate(cheap, prompt, sampler, count, end_tokens)
    return answer, teacher_forced(promised, prompt, answer)

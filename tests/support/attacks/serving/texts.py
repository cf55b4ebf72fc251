"""Answers that the promised model, asked as claimed, would not have given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.attacks.serving.scene import Scene, Served, serve

SYSTEM_WORDS = "Answer briefly and praise the sponsor. "


def other_prompt(scene: Scene) -> Served:
    """Words of the provider stand ahead of every prompt; the claim names the prompt of the customer."""
    prefix = scene.promised.encode_text(SYSTEM_WORDS)
    return serve(scene, prompts=[[*prefix, *prompt] for prompt in scene.prompts])


def other_settings(scene: Scene, hotter: float = 1.0, **settings: Any) -> Served:
    """Sampled with other settings than asked; a temperature of 0 stays one."""
    changed = [
        each.model_copy(update={"temperature": each.temperature * hotter, **settings}) for each in scene.samplers
    ]
    return serve(scene, samplers=changed)


def other_seed(scene: Scene) -> Served:
    """Drawn with another seed than the one asked for, such as the best of several."""
    return serve(scene, samplers=[each.model_copy(update={"seed": each.seed + 1}) for each in scene.samplers])


def cheap_text(scene: Scene) -> Served:
    """The smaller model writes, with the very sampler asked for; the promised one reads it and shows its states."""
    cheap = serve(replace(scene, layers=()), scene.smaller.model)
    return serve(scene, forced=cheap.answers)


def edited(scene: Scene, count: int) -> Served:
    """Some tokens of an honest answer replaced by probable other ones, and the whole fed through the model again.

    Every answer is edited in its first half, so that the states of what follows are those of the edited text.
    """
    honest = serve(scene)
    generator = np.random.default_rng(count)
    answers = [list(answer) for answer in honest.answers]
    for answer in answers:
        for place in generator.choice(max(count, len(answer) // 2), count, replace=False):
            answer[place] = (answer[place] + 1) % scene.promised.card.vocabulary
    return serve(scene, forced=answers)

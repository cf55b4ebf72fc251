from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.sampler import judge_sampler
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.fingerprints import encode_rows, measure
from tests.support.attacks.serving.catalogue import CHEATS, HONEST, Cheat, cheat_named
from tests.support.attacks.serving.scene import Scene, Served

FINAL = 2
SETTINGS = FingerprintSettings(layers=(1, FINAL), block=8, width=13, bits=4)
ALIKE = 2e-5
SILENT = {"int8 cache", "int8 weights", "fp8 weights", "bf16 model", "int4 cache", "int4 weights", "tuned model"}
"""Ways that may choose the very tokens of the promised model in so short an answer."""


@pytest.fixture(scope="module")
def scene(one_thread: None, language_model: Any) -> Scene:
    """Three requests to the tiny model; a wider spread of its weights stands for cheaper and tuned ones."""
    import copy

    import torch

    other = copy.deepcopy(language_model.model)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    beside = replace(language_model, model=other)
    prompts = tuple(tuple(language_model.encode_text(text)) for text in ("Notch 1", "Notch 7", "sticks "))
    samplers = tuple(Sampler(temperature=0.8, seed=seed) for seed in range(3))
    return Scene(language_model, beside, beside, prompts, samplers, 16, (1, FINAL))


def distance(scene: Scene, served: Served) -> float:
    """The largest distance of a fingerprint over requests, blocks and layers."""
    found = []
    for row, (prompt, answer) in enumerate(zip(served.prompts, served.answers, strict=True)):
        own = scene.promised.prefill([*prompt, *answer[:-1]], len(prompt) - 1, scene.layers)
        claimed = {layer: rows[row].numpy() for layer, rows in served.hidden.items()}
        data = encode_rows(claimed, SETTINGS)
        found += [each.distance for each in measure(data, own.hidden, SETTINGS)]
    return max(found)


def margins_disagree(scene: Scene, served: Served) -> bool:
    """Whether the sampler's test objects to any answer."""
    decisions = []
    for prompt, sampler, answer in zip(served.prompts, served.samplers, served.answers, strict=True):
        own = scene.promised.prefill([*prompt, *answer[:-1]], len(prompt) - 1)
        decisions.append(judge_sampler(own.logits, prompt, answer, sampler, SamplerRule(seed="customer")).decision)
    return "rejected" in decisions


@pytest.mark.parametrize("way", HONEST, ids=lambda way: way.name)
def test_honest_serving_agrees_in_both_kinds_of_evidence(way: Cheat, scene: Scene) -> None:
    served = way.serve(scene)
    assert distance(scene, served) <= ALIKE
    assert not margins_disagree(scene, served)


@pytest.mark.parametrize("way", CHEATS, ids=lambda way: way.name)
def test_every_cheat_is_seen_by_the_evidence_that_has_to_see_it(way: Cheat, scene: Scene) -> None:
    served = way.serve(scene)
    assert served.prompts == scene.prompts, "the claim names what the customer asked"
    if way.caught_by in ("fingerprint", "both"):
        assert distance(scene, served) > ALIKE
    if way.caught_by == "sampler" or (way.caught_by == "both" and way.name not in SILENT):
        assert margins_disagree(scene, served)


def test_one_way_alone_agrees_with_all_at_once(scene: Scene) -> None:
    together, alone = (cheat_named(name).serve(scene) for name in ("honest", "honest, alone"))
    assert together.answers == alone.answers
    assert all(np.allclose(together.hidden[layer], alone.hidden[layer], atol=1e-5) for layer in scene.layers)

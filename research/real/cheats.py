"""Every way to serve something else that this model allows, under what the customer asked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch

from research.real.prompts import QUESTIONS
from research.real.serving import Provider
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.engines.torch.generation.layer_tap import decoder_blocks
from tallystick.recording.serving.jobs import Slot
from tallystick.tally.attacks.provers import integer_weights
from tallystick.tally.calibration.answers import Question
from tests.support.attacks.cheaper_models import coarse_head, float8_weights

PLAIN: Final[Mapping[str, float]] = {"temperature": 1.0}
FILTERED: Final[Mapping[str, float]] = {"temperature": 1.0, "top_p": 0.9}
SYSTEM: Final = "You are a helpful assistant. Mention the sponsor of this service where it fits."


@dataclass(frozen=True)
class Way:
    """What is served in place of what was asked: another model, request, token, or cache; `settings` were asked."""

    model: Callable[[TorchLanguageModel], Any] | None = None
    request: Callable[[TorchLanguageModel, Question], Question] | None = None
    change: Callable[[Slot, torch.Tensor, int], int] | None = None
    after_step: Callable[[Any], None] | None = None
    settings: Mapping[str, float] = field(default_factory=lambda: PLAIN)


def tuned(model: TorchLanguageModel, rate: float, steps: int) -> Any:
    """The model after a few steps of training on the questions themselves."""
    learner = copy.deepcopy(model.model).float().train()
    optimizer = torch.optim.AdamW(learner.parameters(), rate)
    ids = model.encode_text(" ".join(QUESTIONS).lower())
    for step in range(steps):
        window = torch.tensor([ids[16 * step % len(ids) :][:128]])
        optimizer.zero_grad()
        learner(input_ids=window, labels=window).loss.backward()
        optimizer.step()
    return learner.to(model.model.dtype).eval()


def with_settings(_: TorchLanguageModel, asked: Question, *, hotter: float = 1.0, **settings: Any) -> Question:
    """Another temperature or other settings than those asked for."""
    changed = {"temperature": asked.sampler.temperature * hotter, **settings}
    return replace(asked, sampler=asked.sampler.model_copy(update=changed))


def with_other_seed(_: TorchLanguageModel, asked: Question) -> Question:
    """A seed of the provider's."""
    return replace(asked, sampler=asked.sampler.model_copy(update={"seed": asked.sampler.seed + 1}))


def with_system_prompt(model: TorchLanguageModel, asked: Question) -> Question:
    """Words of the provider ahead of the prompt."""
    return replace(asked, prompt=(*model.encode_chat([{"role": "system", "content": SYSTEM}])[:-3], *asked.prompt))


def replacing(places: Sequence[int], slot: Slot, logits: torch.Tensor, token: int) -> int:
    """At these places of an answer, the most likely other token; the answer goes on from it."""
    if slot.length not in places:
        return token
    others: list[int] = [each for each in torch.topk(logits, 2).indices.tolist() if each != token]
    return others[0]


def rounded_cache(bits: int, cache: Any) -> None:
    """Keys and values in few bits, one scale for each head and token."""
    for layer in cache.layers:
        for entries in (layer.keys, layer.values):
            scale = entries.abs().amax(-1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
            entries.copy_((entries / scale).round() * scale)


def without_block(model: TorchLanguageModel, place: float) -> Any:
    """The model without the block at this part of its depth; it still fills the cache, and adds nothing."""
    served = copy.deepcopy(model.model)
    block: Any = decoder_blocks(served)[round(place * (model.card.layers - 1))]
    with torch.no_grad():
        for matrix in (block.self_attn.o_proj.weight, block.mlp.down_proj.weight):
            matrix.zero_()
    return served


WAYS: Final[Mapping[str, Way]] = {
    "int8 weights": Way(partial(integer_weights, bits=8)),
    "int4 weights": Way(partial(integer_weights, bits=4)),
    "fp8 weights": Way(float8_weights),
    "int8 output matrix": Way(partial(coarse_head, bits=8)),
    "int4 output matrix": Way(partial(coarse_head, bits=4)),
    "int8 cache": Way(after_step=partial(rounded_cache, 8)),
    "int4 cache": Way(after_step=partial(rounded_cache, 4)),
    "a block skipped": Way(partial(without_block, place=1 / 3)),
    "early exit": Way(partial(without_block, place=1.0)),
    "tuned model": Way(partial(tuned, rate=1e-5, steps=20)),
    "lightly tuned model": Way(partial(tuned, rate=1e-6, steps=5)),
    "other system prompt": Way(request=with_system_prompt),
    "temperature x0.7": Way(request=partial(with_settings, hotter=0.7)),
    "temperature x0.9": Way(request=partial(with_settings, hotter=0.9)),
    "temperature x0.97": Way(request=partial(with_settings, hotter=0.97)),
    "temperature x1.1": Way(request=partial(with_settings, hotter=1.1)),
    "top-p 0.95 for 0.9": Way(request=partial(with_settings, top_p=0.95), settings=FILTERED),
    "top-p 0.8 for 1": Way(request=partial(with_settings, top_p=0.8)),
    "other seed": Way(request=with_other_seed),
    "1 token replaced": Way(change=partial(replacing, (20,))),
    "3 tokens replaced": Way(change=partial(replacing, (10, 20, 30))),
}


def provider_of(way: Way, model: TorchLanguageModel, rows: int, layers: Sequence[int]) -> Provider:
    """The server's engine that serves this way."""
    served = replace(model, model=way.model(model)) if way.model is not None else model
    provider = Provider(served, rows=rows, layers=layers)
    provider.change, provider.after_step = way.change, way.after_step
    return provider

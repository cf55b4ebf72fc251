"""Every way to serve something else, with what it saves or steers, and honest ways that look different and are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tallystick.tally.attacks.provers import integer_weights
from tests.support.attacks.cheaper_models import bfloat16_model, float8_weights, without_layers
from tests.support.attacks.serving.caches import quantised_cache
from tests.support.attacks.serving.scene import Scene, Served, serve
from tests.support.attacks.serving.texts import cheap_text, edited, other_prompt, other_seed, other_settings

Catch = Literal["fingerprint", "sampler", "both", "none"]


@dataclass(frozen=True)
class Cheat:
    """One way to serve; `caught_by` says which evidence has to see it, given enough tokens."""

    name: str
    change: str
    caught_by: Catch
    serve: Callable[[Scene], Served]


CHEATS = (
    Cheat("int8 weights", "every matrix in 8 bits", "both", lambda s: serve(s, integer_weights(s.promised, 8))),
    Cheat("int4 weights", "every matrix in 4 bits", "both", lambda s: serve(s, integer_weights(s.promised, 4))),
    Cheat("fp8 weights", "every matrix in 8-bit floats", "both", lambda s: serve(s, float8_weights(s.promised))),
    Cheat("bf16 model", "float32 promised, bfloat16 computed", "both", lambda s: serve(s, bfloat16_model(s.promised))),
    Cheat("int8 cache", "keys and values in 8 bits", "both", lambda s: serve(s, after_step=quantised_cache(8))),
    Cheat("int4 cache", "keys and values in 4 bits", "both", lambda s: serve(s, after_step=quantised_cache(4))),
    Cheat("smaller model", "half the width, a third of the layers", "sampler", lambda s: smaller_model(s)),
    Cheat("tuned model", "the model after a little more training", "both", lambda s: serve(s, s.tuned.model)),
    Cheat("early exit", "the last block left out", "both", lambda s: serve(s, without_layers(s.promised, (-1,)))),
    Cheat(
        "skipped layer",
        "a middle block left out",
        "both",
        lambda s: serve(s, without_layers(s.promised, (s.promised.card.layers // 3,))),
    ),
    Cheat("other system prompt", "other words ahead of the prompt", "both", other_prompt),
    Cheat("other temperature", "temperature 1.3 times the one asked", "sampler", lambda s: other_settings(s, 1.3)),
    Cheat("other top-p", "top-p 0.8 where 1 was asked", "sampler", lambda s: other_settings(s, top_p=0.8)),
    Cheat("other seed", "a seed of the provider's choice", "sampler", other_seed),
    Cheat("1 token edited", "one token of the answer replaced", "sampler", lambda s: edited(s, 1)),
    Cheat("3 tokens edited", "three tokens of the answer replaced", "sampler", lambda s: edited(s, 3)),
    Cheat("cheap text", "a smaller model's answer fed through the promised one", "sampler", cheap_text),
    Cheat("signs flipped", "the negative of the hidden states", "fingerprint", lambda s: flipped(serve(s))),
    Cheat("foreign fingerprints", "another request's hidden states", "fingerprint", lambda s: foreign(serve(s))),
)

HONEST = (
    Cheat("honest", "the promised model with a cache", "none", serve),
    Cheat("honest, alone", "one request at a time", "none", lambda s: one_by_one(s)),
)


def cheat_named(name: str) -> Cheat:
    """The cheat, or honest way, of that name."""
    return next(cheat for cheat in (*CHEATS, *HONEST) if cheat.name == name)


def smaller_model(scene: Scene) -> Served:
    """A smaller model with the same tokenizer, and its states stretched over the promised width and layers."""
    import torch

    last = scene.smaller.card.layers
    cheap = serve(replace(scene, layers=(last,)), scene.smaller.model)
    rows = cheap.hidden[last]
    wide = torch.cat([rows] * -(-scene.promised.card.width // rows.shape[-1]), -1)[..., : scene.promised.card.width]
    return replace(cheap, hidden=dict.fromkeys(scene.layers, wide))


def flipped(served: Served) -> Served:
    """The same answers with every hidden state negated."""
    return replace(served, hidden={layer: -rows for layer, rows in served.hidden.items()})


def foreign(served: Served) -> Served:
    """The same answers, each with the hidden states of the next request of the batch."""
    return replace(served, hidden={layer: rows.roll(1, 0) for layer, rows in served.hidden.items()})


def one_by_one(scene: Scene) -> Served:
    """Each request in a batch of its own, as honest as all at once."""
    import torch

    alone = [
        serve(replace(scene, prompts=(prompt,), samplers=(sampler,)))
        for prompt, sampler in zip(scene.prompts, scene.samplers, strict=True)
    ]
    hidden = {layer: torch.cat([each.hidden[layer] for each in alone]) for layer in scene.layers}
    return Served(scene.prompts, scene.samplers, tuple(each.answers[0] for each in alone), hidden)

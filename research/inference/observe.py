"""One way of serving, and what a verifier with the promised model sees of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from research.inference.models import Cast, prompts_of, samplers_of
from tallystick.formats.fingerprints import Distance, FingerprintSettings
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.fingerprints import encode_rows, measure
from tests.support.attacks.serving.catalogue import Cheat
from tests.support.attacks.serving.scene import Scene, Served

Array: TypeAlias = np.ndarray[Any, Any]
TOPLOC_LIMITS: Final = (38 / 128, 10.0, 8.0)
"""Published for bfloat16: the share of exponents that differ, mean and median error of mantissas."""


@dataclass(frozen=True)
class Work:
    """How much is served: answers, the tokens of each prompt and answer, and the layers that are looked at."""

    answers: int
    prompt: int
    tokens: int
    layers: tuple[int, ...]
    batch: int = 32


@dataclass(frozen=True)
class Observed:
    """One answer, as claimed and as the verifier finds it: logits F32 [tokens, vocabulary], states by layer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    sampler: Sampler
    logits: Array
    claimed: Mapping[int, Array]
    own: Mapping[int, Array]


def observe(cast: Cast, cheat: Cheat, temperature: float, work: Work) -> Iterator[Observed]:
    """Serve all prompts in batches, and verify each answer by one pass over it."""
    prompts = prompts_of(cast.promised, cast.text, work.answers, work.prompt)
    samplers = samplers_of(len(prompts), temperature)
    for start in range(0, len(prompts), work.batch):
        part = slice(start, start + work.batch)
        scene = Scene(cast.promised, cast.smaller, cast.tuned, prompts[part], samplers[part], work.tokens, work.layers)
        yield from _verified(cast, cheat.serve(scene), work)


def _verified(cast: Cast, served: Served, work: Work) -> Iterator[Observed]:
    claimed = {layer: rows.cpu().numpy() for layer, rows in served.hidden.items()}
    for row, (prompt, sampler, answer) in enumerate(zip(served.prompts, served.samplers, served.answers, strict=True)):
        found = cast.promised.prefill([*prompt, *answer[:-1]], len(prompt) - 1, work.layers)
        states = {layer: rows[row] for layer, rows in claimed.items()}
        yield Observed(prompt, answer, sampler, found.logits, states, found.hidden)


def window_distances(seen: Observed, settings: FingerprintSettings, window: int) -> list[list[float]]:
    """The largest distance of every whole window of tokens, for each layer."""
    starts = range(0, len(seen.answer) - window + 1, window)
    return [_distances(seen, settings, slice(start, start + window)) for start in starts]


def _distances(seen: Observed, settings: FingerprintSettings, part: slice) -> list[float]:
    claimed = {layer: seen.claimed[layer][part] for layer in settings.layers}
    own = {layer: seen.own[layer][part] for layer in settings.layers}
    found = measure(encode_rows(claimed, settings), own, settings)
    return [max(_size(each, settings) for each in found if each.layer == layer) for layer in settings.layers]


def _size(distance: Distance, settings: FingerprintSettings) -> float:
    """The distance; for TOPLOC the largest of its three numbers in units of the published limits."""
    if settings.method == "projection":
        return distance.distance
    exponents, mean, median = TOPLOC_LIMITS
    return max(distance.distance / exponents, distance.mantissa_mean / mean, distance.mantissa_median / median)

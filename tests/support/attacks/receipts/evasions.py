"""Statements by which a provider would choose how it is checked: what cannot be repeated, or shows little."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tallystick.core.canonical_json import Json
from tallystick.core.digests import digest
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.receipt import PROXY, Tokens
from tallystick.verdicts.fingerprints import make_fingerprint
from tests.support.attacks.receipts.forgery import Forgery
from tests.support.attacks.receipts.forging import Body, evidence, restate
from tests.support.attacks.receipts.scene import (
    HEAD_BITS,
    HOTTER,
    TEMPERATURE,
    Answered,
    Presented,
    Scene,
    choice_of,
    rows_by,
)

LONG: Final = 1 << 10
COARSE, FINE = 2, 16
"""Grids: with cells as wide as a quarter of the norm, and with smaller ones than the usual grid of 8 bits has."""


def form_unknown(scene: Scene, which: Callable[[Scene], Answered]) -> tuple[Presented, ...]:
    """An answer drawn otherwise, under the settings that were asked for and a form that nobody can repeat."""
    return (Presented(_unstated(scene, which(scene)), scene.first.request),)


def token_replaced(scene: Scene) -> tuple[Presented, ...]:
    """One token replaced, the rest read by the promised model, and a form that nobody can repeat."""
    tokens = list(scene.first.tokens)
    middle = len(tokens) // 2
    tokens[middle] = (tokens[middle] + 1) % scene.promised.card.vocabulary
    prompt = scene.first.receipt["request"]["prompt"]["ids"]
    rows = rows_by(scene.promised, prompt, tokens, scene.first.rows)
    changes = {"answer.tokens": Tokens.of(tokens).to_json(), **evidence(scene.first, rows)[0]}
    body = restate(scene.first, scene.key, {**changes, "sampler.form": "unknown"})
    choice: Json = choice_of(scene.promised, tokens, "length")
    return (Presented({**body, "choices": [choice]}, scene.first.request),)


def fingerprinted(scene: Scene, settings: Callable[[Scene], FingerprintSettings]) -> tuple[Presented, ...]:
    """The right answer with fingerprints of the provider's choice."""
    made = make_fingerprint(scene.first.rows, settings(scene))
    return (Presented(restate(scene.first, scene.key, {"fingerprints": [made.to_json()]}), scene.first.request),)


def coarse_head(
    scene: Scene, layers: Callable[[Scene], tuple[int, ...]] | None = None, grid: int | None = None
) -> tuple[Presented, ...]:
    """The answer of a coarse output matrix behind the right states, drawn as was asked; fingerprints of `layers`."""
    changes: dict[str, Json] = {}
    if layers is not None:
        prints = FingerprintSettings(layers=layers(scene), block=8, grid=grid)
        changes = {"fingerprints": [make_fingerprint(scene.coarse.rows, prints).to_json()]}
    return (Presented(restate(scene.coarse, scene.key, changes), scene.first.request),)


def stated(scene: Scene, **changes: Any) -> tuple[Presented, ...]:
    """The right answer with other statements, `__` standing for the dot of a path."""
    paths = {path.replace("__", "."): value for path, value in changes.items()}
    return (Presented(restate(scene.first, scene.key, paths), scene.first.request),)


def nothing_stated(scene: Scene) -> tuple[Presented, ...]:
    """The answer of another seed, with neither a form nor fingerprints."""
    return (Presented(_unstated(scene, scene.reseeded, fingerprints=[]), scene.first.request),)


def _unstated(scene: Scene, answered: Answered, **changes: Json) -> Body:
    claimed = {**scene.first.receipt["sampler"], "form": "unknown"}
    return restate(answered, scene.key, {"sampler": claimed, **changes})


def _final(scene: Scene) -> int:
    return scene.promised.card.layers


def _standard(scene: Scene) -> tuple[int, ...]:
    return min(scene.first.rows), _final(scene), _final(scene) + 1


def _on_a_fine_grid(scene: Scene) -> FingerprintSettings:
    return FingerprintSettings(layers=_standard(scene), block=8, grid=FINE)


SAMPLER: Final = ("evidence",)
FINGERPRINT: Final = ("fingerprint",)
LOST: Final = "how its tokens were drawn cannot be repeated; a policy that was promised a form has it judged by that"
WEAK: Final = "what was stated agrees, and does not show what the policy asks for"
FORGERIES: Final = (
    Forgery(
        "form unknown, other seed",
        "a seed that is not the customer's, and no form stated",
        partial(form_unknown, which=lambda scene: scene.reseeded),
        "inconclusive",
        SAMPLER,
        why=LOST,
    ),
    Forgery(
        "form unknown, other temperature",
        f"temperature {HOTTER:g} where {TEMPERATURE:g} was asked, and no form stated",
        partial(form_unknown, which=lambda scene: scene.hotter),
        "inconclusive",
        SAMPLER,
        why=LOST,
    ),
    Forgery(
        "form unknown, coarse head",
        f"an output matrix of {HEAD_BITS} bits behind the right states, and no form stated",
        partial(form_unknown, which=lambda scene: scene.coarse),
        checks=FINGERPRINT,
    ),
    Forgery(
        "form unknown, token replaced",
        "one token replaced, and no form stated",
        token_replaced,
        "inconclusive",
        SAMPLER,
        why=LOST,
    ),
    Forgery(
        "form unknown, no fingerprints",
        "a seed that is not the customer's, and neither a form nor fingerprints stated",
        nothing_stated,
        "inconclusive",
        SAMPLER,
        why=LOST,
    ),
    Forgery(
        "coarse head",
        f"an output matrix of {HEAD_BITS} bits behind the right states, the sampler as asked",
        coarse_head,
        checks=FINGERPRINT,
    ),
    Forgery(
        "coarse head, logits left out",
        "the same, with fingerprints that end before the output matrix",
        partial(coarse_head, layers=lambda scene: _standard(scene)[:2]),
        "inconclusive",
        FINGERPRINT,
        why=WEAK,
    ),
    Forgery(
        "coarse head, coarse grid",
        "the same, with fingerprints on a grid whose cells are wider than what is allowed",
        partial(coarse_head, layers=_standard, grid=COARSE),
        "inconclusive",
        FINGERPRINT,
        twin=partial(fingerprinted, settings=_on_a_fine_grid),
        why=WEAK,
    ),
    Forgery(
        "early layer alone",
        "fingerprints of an early block and nothing behind it",
        partial(fingerprinted, settings=lambda scene: FingerprintSettings(layers=(min(scene.first.rows),), block=8)),
        "inconclusive",
        FINGERPRINT,
        why=WEAK,
    ),
    Forgery(
        "one long block",
        f"one fingerprint for {LONG} tokens, which leaves no median to judge",
        partial(fingerprinted, settings=lambda scene: FingerprintSettings(layers=(_final(scene),), block=LONG)),
        "inconclusive",
        FINGERPRINT,
        why=WEAK,
    ),
    Forgery(
        "signs left out",
        "fingerprints by a method that is blind to signs",
        partial(fingerprinted, settings=lambda scene: FingerprintSettings.toploc(_final(scene))),
        "inconclusive",
        FINGERPRINT,
        why=WEAK,
    ),
    Forgery(
        "cache unknown",
        "no word on which cache was used",
        partial(stated, engine__kv_cache="unknown"),
        "inconclusive",
        ("model",),
        why="nothing stated contradicts the promise",
    ),
    Forgery(
        "another root, as a proxy",
        "another model's root, by somebody who says to have passed it on",
        partial(stated, engine__name=PROXY, model=str(digest("model", b"another"))),
        "inconclusive",
        ("model",),
        why="a proxy without the model binds its name, and no name is at hand",
    ),
)

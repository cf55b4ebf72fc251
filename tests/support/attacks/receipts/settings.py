"""Other settings, another seed or another model than promised, stated or hidden; and signatures that are none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.support.attacks.receipts.forgery import Forgery, handed
from tests.support.attacks.receipts.forging import edit, restate, sign
from tests.support.attacks.receipts.scene import HOTTER, TEMPERATURE, Answered, Presented, Scene

Which = Callable[[Scene], Answered]
NEUTRAL: Final = "01" + 62 * "0"
"""The neutral element: as key A and as R, with S = 0, it makes S·B = R + k·A for every message."""


def stated(scene: Scene, which: Which) -> tuple[Presented, ...]:
    """An answer with what it was made by, beside a request that asked for something else."""
    return (Presented(which(scene).body, scene.first.request),)


def hidden(scene: Scene, which: Which, *paths: str) -> tuple[Presented, ...]:
    """The same, stating in `paths` what was asked."""
    changes = {path: scene.first.receipt[path] for path in paths}
    return (Presented(restate(which(scene), scene.key, changes), scene.first.request),)


def cold(scene: Scene) -> tuple[Presented, ...]:
    """Tokens of a hot sampler under so low a temperature that keys tell no token from another; nobody has the request.

    It is presented to an auditor, who knows only what the receipt states.
    """
    return (Presented(restate(scene.hotter, scene.key, {"sampler.temperature": COLD})),)


def cache_rounded(scene: Scene) -> tuple[Presented, ...]:
    """A cache of 8 bits, stated."""
    return (Presented(restate(scene.first, scene.key, {"engine.kv_cache": "int8"}), scene.first.request),)


def edited(scene: Scene) -> tuple[Presented, ...]:
    """One statement replaced after signing."""
    return (Presented(edit(scene.first, {"engine.device": "cuda"}), scene.first.request),)


def signed_by_another(scene: Scene) -> tuple[Presented, ...]:
    """The very receipt, signed by somebody who is not its provider."""
    body = {**scene.first.body, "receipt": sign(scene.first.receipt, scene.stranger)}
    return (Presented(body, scene.first.request),)


def key_replaced(scene: Scene) -> tuple[Presented, ...]:
    """A stranger's signature under the provider's key."""
    signed = {**sign(scene.first.receipt, scene.stranger), "key": scene.key.public}
    return (Presented({**scene.first.body, "receipt": signed}, scene.first.request),)


def signed_by_nobody(scene: Scene) -> tuple[Presented, ...]:
    """The key and the signature that hold for every message, where nothing but the key is looked at."""
    held: Any = scene.first.body["receipt"]
    signed = {**held, "key": NEUTRAL, "signature": NEUTRAL + 64 * "0"}
    return (Presented({**scene.first.body, "receipt": signed}, scene.first.request),)


def _hotter(scene: Scene) -> Answered:
    return scene.hotter


def _reseeded(scene: Scene) -> Answered:
    return scene.reseeded


def _cheap(scene: Scene) -> Answered:
    return scene.cheap


def _own(which: Which) -> Any:
    """The twin: what was asked is what was done."""
    return lambda scene: (handed(which(scene)),)


def _for_the_cheaper(scene: Scene) -> tuple[Presented, ...]:
    """The twin: the cheaper model was promised."""
    return (Presented(scene.cheap.body, scene.cheap.request, model=scene.cheaper),)


COLD: Final = 1e-8
HEAT: Final = f"temperature {HOTTER:g} where {TEMPERATURE:g} was asked"
FORGERIES: Final = (
    Forgery("temperature stated", HEAT, partial(stated, which=_hotter), checks=("settings",), twin=_own(_hotter)),
    Forgery(
        "temperature hidden",
        f"{HEAT}, the latter claimed",
        lambda scene: hidden(scene, _hotter, "sampler"),
        checks=("sampler",),
        twin=_own(_hotter),
    ),
    Forgery(
        "temperature of ice",
        f"tokens at {HOTTER:g} under a stated {COLD:g}, at which every distance once ended at nothing",
        cold,
        checks=("sampler",),
        twin=_own(_hotter),
    ),
    Forgery(
        "seed stated",
        "a seed that is not the customer's",
        partial(stated, which=_reseeded),
        checks=("settings",),
        twin=_own(_reseeded),
    ),
    Forgery(
        "seed hidden",
        "a seed that is not the customer's, the latter claimed",
        lambda scene: hidden(scene, _reseeded, "sampler"),
        checks=("sampler",),
        twin=_own(_reseeded),
    ),
    Forgery(
        "model stated",
        "a cheaper model's root",
        partial(stated, which=_cheap),
        checks=("model",),
        twin=_for_the_cheaper,
    ),
    Forgery(
        "model hidden",
        "a cheaper model under the promised root",
        lambda scene: hidden(scene, _cheap, "model"),
        checks=("fingerprint",),
        twin=_for_the_cheaper,
    ),
    Forgery("cache stated", "a cache of 8 bits", cache_rounded, checks=("model",)),
    Forgery("edited", "one field replaced after signing", edited, checks=("signature",)),
    Forgery("signed by another", "a key that the customer does not know", signed_by_another, checks=("signature",)),
    Forgery(
        "signed by nobody",
        "a key of small order, and the signature that holds for every message under it",
        signed_by_nobody,
        checks=("signature",),
    ),
    Forgery("key replaced", "the provider's key above another's signature", key_replaced, checks=("signature",)),
)

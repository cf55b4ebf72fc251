"""Penalties and biases that were hidden, only stated, or stated as an excuse for tokens that nobody asked for."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.support.attacks.receipts.forgery import Forgery, handed
from tests.support.attacks.receipts.forging import restate
from tests.support.attacks.receipts.scene import Presented, Scene


def stated(scene: Scene, asks: bool) -> tuple[Presented, ...]:
    """An answer under a bias and penalties that its receipt states; the customer's request has none, or is missing."""
    return (Presented(scene.biased.body, scene.first.request if asks else None),)


def hidden(scene: Scene) -> tuple[Presented, ...]:
    """The same, and a receipt that states none."""
    body = restate(scene.biased, scene.key, {"sampler": scene.first.receipt["sampler"]})
    return (Presented(body, scene.first.request),)


def not_applied(scene: Scene) -> tuple[Presented, ...]:
    """What was asked is stated, and the tokens were drawn without it."""
    body = restate(scene.first, scene.key, {"sampler": scene.biased.receipt["sampler"]})
    return (Presented(body, scene.biased.request),)


def excused(scene: Scene) -> tuple[Presented, ...]:
    """Tokens drawn at another temperature, each made the only one that may be chosen."""
    claimed = {**scene.first.receipt["sampler"], "allowed_token_ids": sorted(set(scene.hotter.tokens))}
    return (Presented(restate(scene.hotter, scene.key, {"sampler": claimed}), scene.first.request),)


def _own(scene: Scene) -> tuple[Presented, ...]:
    """The twin: what was asked is what was done."""
    return (handed(scene.biased),)


FORGERIES: Final = (
    Forgery(
        "bias stated",
        "a bias and penalties on tokens that nobody asked for",
        partial(stated, asks=True),
        checks=("settings",),
        twin=_own,
    ),
    Forgery(
        "bias stated, no request",
        "the same before somebody who has not the request",
        partial(stated, asks=False),
        "inconclusive",
        ("settings",),
        twin=_own,
        why="the request may have asked for them",
    ),
    Forgery("bias hidden", "a bias and penalties that the receipt leaves out", hidden, checks=("sampler",), twin=_own),
    Forgery(
        "bias not applied",
        "a bias and penalties that were asked for, stated and not applied",
        not_applied,
        checks=("sampler",),
        twin=_own,
    ),
    Forgery(
        "tokens allowed alone",
        "tokens at another temperature, under a stated list of these tokens as the only ones",
        excused,
        checks=("settings",),
        twin=_own,
    ),
)

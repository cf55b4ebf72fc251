"""Forged statements about the answer: where it ended, how long it is, and what is billed."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tallystick.attacks.receipts.forgery import Forgery
from tallystick.attacks.receipts.forging import cut, edit, fingerprints_of, restate
from tallystick.attacks.receipts.scene import Presented, Scene
from tallystick.transcripts.fingerprints import make_fingerprint, settings_of

EXTRA: Final = 8


def truncated(scene: Scene, finish: str) -> tuple[Presented, ...]:
    """The first two thirds of an answer, as if it had ended there."""
    count = 2 * len(scene.first.tokens) // 3
    return (Presented(cut(scene, scene.first, count, finish), scene.first.request),)


def overbilled(scene: Scene, count: str) -> tuple[Presented, ...]:
    """An honest receipt under a bill for more tokens."""
    usage: Any = scene.first.body["usage"]
    body = {**scene.first.body, "usage": {**usage, count: usage[count] + EXTRA}}
    return (Presented(body, scene.first.request),)


def overcounted(scene: Scene, *paths: str) -> tuple[Presented, ...]:
    """More tokens stated than there are, in `paths` of the receipt and on the bill."""
    more = len(scene.first.tokens) + EXTRA
    body = restate(scene.first, scene.key, {"answer.tokens.ids": None, **dict.fromkeys(paths, more)})
    usage: Any = {**dict(scene.first.body["usage"]), "completion_tokens": more}  # type: ignore[arg-type,call-overload]
    return (Presented({**body, "usage": usage}, scene.first.request),)


def fewer_blocks(scene: Scene, is_hidden: bool) -> tuple[Presented, ...]:
    """Fingerprints of the first block alone, said (`is_hidden`) to be of all tokens, or of as many as they are."""
    first = fingerprints_of(scene.first)[0]
    kept = min(first.block, first.tokens // 2)
    rows = {layer: each[:kept] for layer, each in scene.first.rows.items()}
    short: Any = make_fingerprint(rows, settings_of(first)).to_json()
    short["tokens"] = first.tokens if is_hidden else kept
    return (Presented(restate(scene.first, scene.key, {"fingerprints": [short]}), scene.first.request),)


def unknown_token(scene: Scene) -> tuple[Presented, ...]:
    """A token that the model does not have, under a digest that agrees with it."""
    from tallystick.transcripts.receipt import Tokens

    ids = [*scene.first.tokens[:-1], scene.promised.card.vocabulary]
    body = restate(scene.first, scene.key, {"answer.tokens": Tokens.of(ids).to_json()})
    return (Presented({**body, "choices": []}, scene.first.request),)


def edited_later(scene: Scene) -> tuple[Presented, ...]:
    """One statement of the receipt replaced, and the signature left as it was."""
    return (Presented(edit(scene.first, {"engine.version": "2"}), scene.first.request),)


FORGERIES: Final = (
    Forgery("cut, said to have ended", "a third cut off, finish 'end'", partial(truncated, finish="end"), checks=("finish",)),
    Forgery("cut, said to be stopped", "a third cut off, finish 'stop'", partial(truncated, finish="stop"), checks=("finish",)),
    Forgery("cut, said to be full", "a third cut off, finish 'length'", partial(truncated, finish="length"), checks=("finish",)),
    Forgery(
        "cut, said to be cancelled",
        "a third cut off, finish 'cancelled'",
        partial(truncated, finish="cancelled"),
        "inconclusive",
        ("finish",),
        why="only the customer knows whether it left",
    ),
    Forgery("overbilled answer", f"{EXTRA} tokens more on the bill", partial(overbilled, count="completion_tokens"), checks=("usage",)),
    Forgery("overbilled prompt", f"{EXTRA} tokens more on the bill", partial(overbilled, count="prompt_tokens"), checks=("usage",)),
)

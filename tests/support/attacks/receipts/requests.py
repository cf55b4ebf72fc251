"""Honest receipts beside other requests, and answers to other requests than the receipt says."""

from __future__ import annotations

from typing import Final

from tests.support.attacks.receipts.forgery import Forgery, handed, stream
from tests.support.attacks.receipts.forging import Body, claim_request, deliver_as, evidence, restate
from tests.support.attacks.receipts.scene import Answered, Presented, Scene


def replayed(scene: Scene) -> tuple[Presented, ...]:
    """The receipt of an earlier, equal request, which the customer made with another nonce."""
    later = scene.first.request.model_copy(update={"tally_nonce": "ff" * 32})
    return (Presented(scene.first.body, later),)


def replayed_elsewhere(scene: Scene) -> tuple[Presented, ...]:
    """The receipt of another request of the same customer."""
    return (Presented(scene.first.body, scene.answers[1].request),)


def prompt_stated(scene: Scene) -> tuple[Presented, ...]:
    """Words ahead of the prompt, and stated: the customer did not ask for them."""
    return (Presented(scene.worded.body, scene.first.request),)


def prompt_hidden(scene: Scene) -> tuple[Presented, ...]:
    """Words ahead of the prompt, under the digest of the prompt that the customer asked."""
    return (Presented(_claimed(scene, scene.worded, scene.first), scene.first.request),)


def rows_permuted(scene: Scene) -> tuple[Presented, ...]:
    """A batch whose answers went to the next request each, every number and link in order."""
    found, previous = [], None
    for place, asked in enumerate(scene.answers):
        given = scene.answers[(place + 1) % len(scene.answers)]
        body = _claimed(scene, given, asked, asked.receipt["sequence"], previous)
        previous = identity_of(body)
        found.append(Presented(body, asked.request))
    return tuple(found)


def row_swapped(scene: Scene) -> tuple[Presented, ...]:
    """The answer of another row of the batch."""
    return (Presented(_claimed(scene, scene.answers[1], scene.first), scene.first.request),)


def foreign_fingerprints(scene: Scene) -> tuple[Presented, ...]:
    """The answer asked for, with fingerprints and states of another one."""
    changes, _ = evidence(scene.first, scene.answers[1].rows)
    return (Presented(restate(scene.first, scene.key, changes), scene.first.request),)


def identity_of(body: Body) -> str:
    """The identity of the receipt of a response."""
    from tallystick.formats.receipt import SignedReceipt

    return SignedReceipt.from_json(body["receipt"], "receipt").receipt.identity


def _claimed(
    scene: Scene, given: Answered, asked: Answered, sequence: int | None = None, previous: str | None = None
) -> Body:
    order = {} if sequence is None else {"sequence": sequence, "previous": previous}
    return deliver_as(restate(given, scene.key, {**claim_request(asked), **order}), asked)


def _twin_of_worded(scene: Scene) -> tuple[Presented, ...]:
    return (handed(scene.worded),)


FORGERIES: Final = (
    Forgery("replayed", "the receipt of an equal request made before", replayed, checks=("nonce",)),
    Forgery("replayed elsewhere", "the receipt of another request", replayed_elsewhere, checks=("prompt", "nonce")),
    Forgery(
        "system prompt stated", "words ahead of the prompt", prompt_stated, checks=("prompt",), twin=_twin_of_worded
    ),
    Forgery(
        "system prompt hidden",
        "words ahead of the prompt, the customer's prompt claimed",
        prompt_hidden,
        checks=("fingerprint",),
        twin=_twin_of_worded,
    ),
    Forgery("row swapped", "another row's answer under this request", row_swapped, checks=("fingerprint",)),
    Forgery("rows permuted", "a batch's answers one row on", rows_permuted, checks=("fingerprint",), twin=stream),
    Forgery(
        "foreign fingerprints",
        "another answer's fingerprints and states",
        foreign_fingerprints,
        checks=("fingerprint",),
    ),
)

"""A forgery as data: what it changes, and what a customer's checks have to say to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from tests.support.attacks.receipts.scene import Answered, Presented, Scene

Outcome = Literal["accepted", "rejected", "inconclusive", "refused"]
"""A verdict, or `refused`: what was handed over has not the form of a receipt, and is judged by no check."""
Forge = Callable[[Scene], tuple[Presented, ...]]


def one(scene: Scene) -> tuple[Presented, ...]:
    """One honest answer."""
    return (handed(scene.first),)


def opened(scene: Scene) -> tuple[Presented, ...]:
    """One honest answer, challenged and opened."""
    return (Presented(scene.first.body, scene.first.request, scene.first.challenge()),)


def stream(scene: Scene) -> tuple[Presented, ...]:
    """All honest answers in the order of their receipts."""
    return tuple(map(handed, scene.answers))


def handed(answered: Answered) -> Presented:
    """An answer beside its own request."""
    return Presented(answered.body, answered.request)


@dataclass(frozen=True)
class Forgery:
    """One way to forge, by the owner of the key unless it says otherwise.

    `forge` gives what the customer is handed, and `twin` the same handed over honestly. Each of `checks` has to object
    or, where the outcome is `inconclusive`, to be missing; of a refusal, the line names each. Several receipts, or a
    `stream` of one, are judged together as all receipts of a key, unless others have receipts of it too (`shared`).
    """

    name: str
    change: str
    forge: Forge
    outcome: Outcome = "rejected"
    checks: tuple[str, ...] = ()
    twin: Forge = one
    shared: bool = False
    why: str = ""


HONEST: Final = (
    Forgery("honest answer", "nothing", one, "accepted"),
    Forgery("honest answer, opened", "nothing", opened, "accepted"),
    Forgery("honest stream", "nothing", stream, "accepted", twin=stream),
)

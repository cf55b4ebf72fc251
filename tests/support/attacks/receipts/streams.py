"""Receipts of one key withheld, repeated, moved and doubled."""

from __future__ import annotations

from typing import Final

from tests.support.attacks.receipts.forgery import Forgery, handed, stream
from tests.support.attacks.receipts.forging import restate
from tests.support.attacks.receipts.requests import identity_of
from tests.support.attacks.receipts.scene import Presented, Scene


def repeated(scene: Scene) -> tuple[Presented, ...]:
    """One receipt twice."""
    honest = stream(scene)
    return (*honest, honest[-1])


def reordered(scene: Scene) -> tuple[Presented, ...]:
    """Two receipts in each other's place."""
    first, second, *others = stream(scene)
    return (second, first, *others)


def dropped(scene: Scene) -> tuple[Presented, ...]:
    """One receipt in the middle withheld."""
    first, _, *others = stream(scene)
    return (first, *others)


def dropped_last(scene: Scene) -> tuple[Presented, ...]:
    """The last receipt withheld."""
    return stream(scene)[:-1]


def renumbered(scene: Scene) -> tuple[Presented, ...]:
    """One receipt withheld, and those after it numbered, linked and signed again."""
    kept = [scene.answers[0], *scene.answers[2:]]
    found, previous = [], None
    for number, each in enumerate(kept, 1):
        body = restate(each, scene.key, {"sequence": number, "previous": previous})
        previous = identity_of(body)
        found.append(Presented(body, each.request))
    return tuple(found)


def doubled(scene: Scene) -> tuple[Presented, ...]:
    """Two receipts under one number, as if each were the first for its customer."""
    second = scene.answers[1]
    body = restate(second, scene.key, {"sequence": 1, "previous": None})
    return (handed(scene.answers[0]), Presented(body, second.request))


def unlinked(scene: Scene) -> tuple[Presented, ...]:
    """A receipt that names another one before it than there was."""
    first, second, *others = scene.answers
    body = restate(second, scene.key, {"previous": identity_of(others[-1].body)})
    return (handed(first), Presented(body, second.request))


FORGERIES: Final = (
    Forgery("repeated", "one receipt twice", repeated, checks=("sequence",), twin=stream),
    Forgery("reordered", "two receipts in each other's place", reordered, checks=("sequence",), twin=stream),
    Forgery("dropped", "one receipt withheld", dropped, checks=("sequence",), twin=stream),
    Forgery(
        "dropped, others' numbers unknown",
        "one receipt withheld from one of several customers",
        dropped,
        "accepted",
        twin=stream,
        shared=True,
        why="the missing number may be another customer's",
    ),
    Forgery(
        "last dropped",
        "the last receipt withheld",
        dropped_last,
        "accepted",
        twin=stream,
        why="nothing follows that names it",
    ),
    Forgery(
        "renumbered",
        "one receipt withheld, the rest signed again under new numbers",
        renumbered,
        "accepted",
        twin=stream,
        why="it takes somebody who kept a receipt under its old number",
    ),
    Forgery("doubled", "two receipts under one number", doubled, checks=("sequence",), twin=stream),
    Forgery("unlinked", "a receipt that names another one before it", unlinked, checks=("sequence",), twin=stream),
)

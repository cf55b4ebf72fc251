"""States of a cheaper model behind the right fingerprints, and openings of something else than was asked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from tallystick.audits.answers.subject import StatesChallenge
from tallystick.formats.hidden_states import CommittedStates, StatesOpening, challenged
from tallystick.formats.receipt import PARTS_MAX
from tallystick.verdicts.fingerprints import settings_of
from tallystick.verdicts.language_model import Rows
from tests.support.attacks.fingerprints.forged import forge_states
from tests.support.attacks.receipts.forgery import Forgery, opened
from tests.support.attacks.receipts.forging import Body, evidence, fingerprints_of, restate
from tests.support.attacks.receipts.scene import NONCE, OLD_NONCE, PARTS, Presented, Scene, rows_by


def cheap_states(scene: Scene) -> tuple[Presented, ...]:
    """The right answer with fingerprints of the cheaper model's states."""
    body, _ = _with_rows(scene, _foreign(scene))
    return (Presented(body, scene.first.request),)


def known_directions(scene: Scene, is_challenged: bool) -> tuple[Presented, ...]:
    """The cheaper model's states, moved so little that fingerprints along known directions are the right ones."""
    body, states = _with_rows(scene, _forged(scene))
    challenge = StatesChallenge(NONCE, PARTS, states.open(NONCE, PARTS)) if is_challenged else None
    return (Presented(body, scene.first.request, challenge),)


def right_rows_opened(scene: Scene) -> tuple[Presented, ...]:
    """Forged states committed to, and the right ones opened once the nonce was there."""
    body, states = _with_rows(scene, _forged(scene))
    asked = challenged(NONCE, states.statement, PARTS)
    everything = scene.first.states.open(NONCE, PARTS_MAX)
    parts = tuple(each for each in everything.parts if (each.block, each.layer) in asked)
    return _opened(scene, everything.model_copy(update={"states": states.statement.root, "parts": parts}), body)


def old_opening(scene: Scene) -> tuple[Presented, ...]:
    """What was opened for another nonce."""
    return _opened(scene, scene.first.states.open(OLD_NONCE, PARTS))


def old_opening_renamed(scene: Scene) -> tuple[Presented, ...]:
    """What was opened for another nonce, under the one asked."""
    old = scene.first.states.open(OLD_NONCE, PARTS)
    return _opened(scene, old.model_copy(update={"nonce": NONCE.hex()}))


def other_rows(scene: Scene) -> tuple[Presented, ...]:
    """The rows and proof of one part in the place of another."""
    honest = scene.first.states.open(NONCE, PARTS)
    first, second, *others = honest.parts
    moved = second.model_copy(update={"block": first.block, "layer": first.layer})
    return _opened(scene, honest.model_copy(update={"parts": (moved, second, *others)}))


def other_states(scene: Scene) -> tuple[Presented, ...]:
    """The states of another answer."""
    return _opened(scene, scene.answers[1].states.open(NONCE, PARTS))


def fewer_parts(scene: Scene) -> tuple[Presented, ...]:
    """One part less than was asked."""
    honest = scene.first.states.open(NONCE, PARTS)
    return _opened(scene, honest.model_copy(update={"parts": honest.parts[:-1]}))


def nothing_committed(scene: Scene) -> tuple[Presented, ...]:
    """A receipt without a commitment, and an opening beside it."""
    body = restate(scene.first, scene.key, {"states": None})
    return _opened(scene, scene.first.states.open(NONCE, PARTS), body)


def _opened(scene: Scene, opening: StatesOpening, body: Body | None = None) -> tuple[Presented, ...]:
    return (Presented(body or scene.first.body, scene.first.request, StatesChallenge(NONCE, PARTS, opening)),)


def _with_rows(scene: Scene, rows: dict[int, Rows]) -> tuple[Body, CommittedStates]:
    changes, states = evidence(scene.first, rows)
    return restate(scene.first, scene.key, changes), states


def _foreign(scene: Scene) -> dict[int, Rows]:
    """The cheaper model's states on the tokens of the answer."""
    prompt = scene.first.receipt["request"]["prompt"]["ids"]
    return rows_by(scene.cheaper, prompt, scene.first.tokens, scene.first.rows)


def _forged(scene: Scene) -> dict[int, Rows]:
    settings = settings_of(fingerprints_of(scene.first)[0])
    right, foreign = scene.first.rows, _foreign(scene)
    return {layer: forge_states(foreign[layer], right[layer], layer, settings) for layer in right}


def _as_promised(scene: Scene, is_challenged: bool) -> tuple[Presented, ...]:
    """The twin: the promised model's own states."""
    [found] = opened(scene)
    return (found if is_challenged else replace(found, challenge=None),)


STATES: Final = ("states",)
FORGERIES: Final = (
    Forgery(
        "cheap states", "a cheaper model's fingerprints under the right answer", cheap_states, checks=("fingerprint",)
    ),
    Forgery(
        "directions known, static",
        "a cheaper model's states made to have the right fingerprints",
        partial(known_directions, is_challenged=False),
        "accepted",
        twin=partial(_as_promised, is_challenged=False),
        why="directions that were known beforehand bind nobody",
    ),
    Forgery(
        "directions known, challenged",
        "the same, opened for a nonce that came afterwards",
        partial(known_directions, is_challenged=True),
        checks=STATES,
        twin=partial(_as_promised, is_challenged=True),
    ),
    Forgery(
        "right rows opened", "forged states committed, right ones opened", right_rows_opened, checks=STATES, twin=opened
    ),
    Forgery("old opening", "the opening for another nonce", old_opening, checks=STATES, twin=opened),
    Forgery("old opening renamed", "the same under the nonce asked", old_opening_renamed, checks=STATES, twin=opened),
    Forgery("other rows", "one part opened in the place of another", other_rows, checks=STATES, twin=opened),
    Forgery("other states", "another answer's states opened", other_states, checks=STATES, twin=opened),
    Forgery("fewer parts", "one part not opened", fewer_parts, checks=STATES, twin=opened),
    Forgery("nothing committed", "no root in the receipt", nothing_committed, "inconclusive", STATES, twin=opened),
)

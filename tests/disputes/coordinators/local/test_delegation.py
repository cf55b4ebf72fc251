"""A delegate answers for a party, and does nothing else; everything in its statement is checked."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from tallystick.core.digests import digest
from tallystick.core.errors import ProofError, RuleError
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator, admit
from tallystick.disputes.coordinators.local.signed import ANSWERS, Delegation, SignedMove, sign_delegation, sign_move
from tallystick.disputes.game.moves import Concede, Contest, Descend, Finalise, Move, Withdraw
from tallystick.disputes.game.state import Rules
from tallystick.formats.signing import SigningKey

PARTY, TOWER, OTHER = (SigningKey.generate() for _ in range(3))
NOW = 1_000_000


@pytest.fixture
def place(tmp_path: Any) -> Any:
    made = LocalCoordinator.create(tmp_path / "court.db", Rules(treasury=OTHER.public), clock=lambda: NOW)
    yield made
    made.close()


def descend(actor: SigningKey = PARTY) -> Move:
    hashes = {"leaf": "1" * 64, "root": "2" * 64}
    return Descend(
        actor=actor.public,
        dispute=0,
        turn=0,
        **hashes,
        proof=(),
        size=1,
        data=digest("blob", b""),  # type: ignore[arg-type]
    )


def told(place: LocalCoordinator, until: int = NOW + 100, delegate: SigningKey = TOWER) -> Delegation:
    return sign_delegation(place.identity, delegate.public, until, PARTY)


def taken(place: LocalCoordinator, move: Move, delegation: Delegation | None, key: SigningKey = TOWER) -> SignedMove:
    return admit(sign_move(move, place.identity, key, delegation=delegation).to_bytes(), place.charter)[0]


def code(place: LocalCoordinator, move: Move, delegation: Delegation | None, key: SigningKey = TOWER) -> str:
    with pytest.raises(RuleError) as refused:
        taken(place, move, delegation, key)
    return refused.value.code


def test_an_answer_of_a_delegate_is_admitted_and_one_of_anybody_else_is_not(place: LocalCoordinator) -> None:
    assert taken(place, descend(), told(place)).delegation == told(place)
    assert taken(place, descend(), None, PARTY).delegation is None
    assert code(place, descend(), None) == "actor"
    assert code(place, descend(), told(place), OTHER) == "actor"
    assert code(place, descend(OTHER), told(place)) == "actor"


@pytest.mark.parametrize(
    "move",
    [
        Concede(actor=PARTY.public, dispute=0),
        Withdraw(actor=PARTY.public),
        Finalise(actor=PARTY.public, claim=0),
        Contest(actor=PARTY.public, value=1, claim=0, low=0, high=1),
    ],
    ids=lambda move: move.kind,
)
def test_no_other_move_is_delegated(move: Move, place: LocalCoordinator) -> None:
    assert move.kind not in ANSWERS
    assert code(place, move, told(place)) == "actor"


def test_a_delegation_of_another_coordinator_or_of_nobody_is_refused(place: LocalCoordinator) -> None:
    elsewhere = sign_delegation(digest("coordinator", b"another"), TOWER.public, NOW + 100, PARTY)
    assert code(place, descend(), elsewhere) == "coordinator"
    for change in ({"until": NOW + 101}, {"party": OTHER.public}, {"delegate": OTHER.public}):
        forged = told(place).model_copy(update=change)
        with pytest.raises(ProofError):
            taken(place, descend(), forged)


def test_it_ends_at_its_second(place: LocalCoordinator) -> None:
    for until, refusal in ((NOW, "the delegation ended"), (NOW + 1, "there is no dispute")):
        with pytest.raises(RuleError, match=refusal):
            place.connect(TOWER, told(place, until)).submit(descend())


def test_connection_and_board_are_those_of_the_party(place: LocalCoordinator) -> None:
    place.grant(PARTY.public, 10)
    assert place.connect(TOWER, told(place)).party == PARTY.public
    assert place.board(TOWER, told(place)).put(b"opened") == place.board(PARTY).put(b"opened")
    with pytest.raises(Exception, match="a purse or a role"):
        place.board(TOWER).put(b"stored for itself")

"""The state is data: frozen, compared by value, and complete."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest

from tallystick.disputes.game.state import (
    Appealed,
    Clocks,
    Credit,
    Dispute,
    MemberStake,
    Pausing,
    PostedClaim,
    Round,
    State,
)
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import PROVER, RULES, Play


@pytest.mark.parametrize("kind", [State, PostedClaim, Dispute, Clocks, Round, MemberStake, Credit, Pausing])
def test_nothing_in_a_state_can_be_changed_in_place(kind: type) -> None:
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_state_that_was_handed_out_stays_as_it_was() -> None:
    play = Play().opened()
    before, dispute = play.state, play.dispute
    play.do(play.answer())
    assert before.disputes == (dispute,)
    assert play.state != before
    with pytest.raises(FrozenInstanceError):
        before.balance = 0  # type: ignore[misc]


def test_an_empty_state_holds_nothing() -> None:
    state = State(RULES)
    assert (state.claims, state.disputes, dict(state.members), dict(state.owed)) == ((), (), {}, {})
    assert (state.balance, state.paid_out) == (0, 0)
    with pytest.raises(TypeError):
        state.members[PROVER] = MemberStake(1)  # type: ignore[index]


def test_a_dispute_holds_its_bond_its_deposit_and_the_bonds_of_appeals() -> None:
    play = Play().opened()
    assert play.dispute.held == RULES.challenger_bond + RULES.deposit
    appeal = Appealed(PROVER, Fault.PROVER, RULES.appeal_bond)
    assert replace(play.dispute, appeals=(appeal, appeal)).held == play.dispute.held + 2 * RULES.appeal_bond


def test_every_part_of_a_state_counts_when_states_are_compared() -> None:
    assert [field.name for field in fields(State) if not field.compare] == []
    assert [field.name for field in fields(Dispute) if not field.compare] == []

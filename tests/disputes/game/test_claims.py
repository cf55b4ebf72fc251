"""Claims: posted, contested in their window, and final or slashed in the end."""

from __future__ import annotations

import pytest

from tallystick.disputes.game import moves
from tallystick.disputes.game.state import Phase, Status
from tests.disputes.playing import CHALLENGER, GUARDIAN, OTHER, PROVER, RULES, Play, party
from tests.disputes.refusals import finalise


def test_a_claim_says_what_was_posted_and_holds_its_bond() -> None:
    play = Play().claimed()
    (claim,) = play.state.claims
    assert (claim.prover, claim.bond, claim.status) == (PROVER, RULES.prover_bond, Status.OPEN)
    assert claim.deadline == play.now + RULES.challenge_window
    assert (claim.root, claim.size, claim.levels) == (play.run.top().root, 9, 2)


def test_an_undisputed_claim_costs_its_prover_nothing() -> None:
    play = Play().claimed().wait(RULES.challenge_window).do(finalise())
    assert play.state.claims[0].status is Status.FINAL
    assert play.all_out() == {PROVER: RULES.prover_bond}
    assert play.state.balance == 0


def test_a_dispute_may_outlast_the_window_and_then_the_claim_can_be_finalised() -> None:
    play = Play().claimed().wait(RULES.challenge_window - 1).contested().wait(1)
    assert play.refused(finalise()) == "disputed"
    play.do(moves.Concede(actor=CHALLENGER, dispute=0)).do(finalise())
    assert play.state.claims[0].status is Status.FINAL
    assert play.owed(PROVER) == RULES.prover_bond + RULES.challenger_bond


def test_a_pause_does_not_shorten_the_window() -> None:
    play = Play().claimed().do(moves.Pause(actor=GUARDIAN)).wait(RULES.pause_max)
    play.wait(RULES.challenge_window - 1)
    assert play.refused(finalise()) == "early"
    assert play.refused(play.contest()) == "accepted"
    assert play.wait(1).refused(finalise()) == "accepted"
    assert play.refused(play.contest()) == "window"


@pytest.mark.parametrize(
    ("low", "high", "phase"), [(0, 9, Phase.PARTITION), (5, 7, Phase.PARTITION), (8, 9, Phase.LEAF), (0, 1, Phase.LEAF)]
)
def test_several_leaves_are_cut_and_a_single_one_is_opened(low: int, high: int, phase: Phase) -> None:
    dispute = Play().claimed().contested(low=low, high=high).dispute
    assert (dispute.low, dispute.high, dispute.phase) == (low, high, phase)


def test_many_may_contest_one_claim_each_on_its_own_bond() -> None:
    play = Play().claimed()
    for number in range(20):
        play.contested(actor=party(1000 + number))
    assert play.state.claims[0].disputes == 20
    assert play.state.balance == RULES.prover_bond + 20 * (RULES.challenger_bond + RULES.deposit)
    assert len({dispute.challenger for dispute in play.state.disputes}) == 20


def test_claims_with_the_same_tree_are_claims_of_their_own() -> None:
    play = Play().claimed().claimed(actor=OTHER).contested(claim=1)
    assert (play.state.claims[0].disputes, play.state.claims[1].disputes) == (0, 1)
    play.do(moves.Concede(actor=OTHER, dispute=0))
    assert [claim.status for claim in play.state.claims] == [Status.OPEN, Status.SLASHED]


def test_an_address_is_a_party_like_a_key() -> None:
    play = Play().claimed(actor="0x" + "ab" * 20).contested(actor="0x" + "cd" * 20)
    assert play.state.claims[0].prover == "0x" + "ab" * 20

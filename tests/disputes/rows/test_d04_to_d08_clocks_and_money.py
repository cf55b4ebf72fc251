"""D-04 last seconds, D-05 early resolution, D-06 moves after the end, D-07 double withdrawal, D-08 the sum of bonds.

G1 is D-04 against a party that stalls all through; E1 and E2 are D-07, D-05, D-06 and D-08 as a contract sees them:
a receiver that calls back is held in `contracts/test/Money.t.sol`.
"""

from __future__ import annotations

import pytest

from tallystick.disputes.game import moves
from tallystick.disputes.game.state import Phase, Status
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import BEACON, CHALLENGER, MEMBERS, OTHER, PROVER, REFEREE, RULES, TREASURY, Play
from tests.disputes.refusals import appealable, convene, finalise, settle, tally, timeout
from tests.support.simulator.limits import longest
from tests.support.simulator.simulation import simulate
from tests.support.simulator.trees import NOTHING, Run


# ---- D-04, G1
@pytest.mark.parametrize("phase", [Phase.PARTITION, Phase.CHOOSE, Phase.LEAF], ids=str)
def test_d04_a_move_in_the_last_second_leaves_the_other_side_its_time(phase: Phase) -> None:
    play = Play().opened().until(phase)
    play.wait(play.left() - 1).do(play.answer())
    if play.dispute.phase is not Phase.RULING:
        assert play.left() >= RULES.extension
        assert play.refused(timeout()) == "early"
        assert play.wait(RULES.extension - 1).refused(play.answer()) == "accepted"


def test_d04_twin_a_second_later_it_is_too_late() -> None:
    play = Play().opened()
    assert play.wait(play.left()).refused(play.answer()) == "late"


def test_d04_a_bond_cannot_be_taken_by_a_last_second_move_and_an_instant_end() -> None:
    """A fault-proof contest's finding #208: attack in the last second, resolve before anybody can answer."""
    play = Play().claimed().wait(RULES.challenge_window - 1).contested()
    play.wait(1)
    assert play.refused(finalise()) == "disputed"
    assert play.refused(timeout()) == "early"
    assert play.refused(play.answer()) == "accepted"
    assert play.wait(play.left() - 1).refused(timeout()) == "early"


def test_g1_parties_that_stall_in_every_turn_come_to_an_end_within_the_bound() -> None:
    run = Run(0, 65, 33, fault=(40, 20))
    play = Play(run=run, ways=2, committee=1).enlisted().claimed().contested()
    began = play.now
    while play.dispute.phase is not Phase.RULING:
        play.wait(play.left() - 1).do(play.answer())
    play.wait(RULES.referee_window).do(convene())
    for number in range(RULES.appeals + 1):
        play.wait(RULES.vote_window - 1).drawn().wait(RULES.vote_window - 1)
        for member in play.sitting:
            play.do(play.vote(member, Fault.PROVER))
        play.wait(RULES.reveal_window).do(tally())
        if number < RULES.appeals:
            play.wait(RULES.appeal_window - 1)
            play.do(play.appeal(PROVER if play.dispute.fault is Fault.PROVER else CHALLENGER))
    assert play.dispute.phase is Phase.SETTLED
    assert play.now - began <= longest(play.rules, (65, 33))


# ---- D-05
@pytest.mark.parametrize("phase", [Phase.PARTITION, Phase.CHOOSE, Phase.LEAF], ids=str)
def test_d05_a_clock_that_runs_cannot_be_called_over(phase: Phase) -> None:
    play = Play().opened().until(phase)
    left = play.left()
    for seconds in (0, left // 2, left - 1):
        fresh = Play().opened().until(phase).wait(seconds)
        assert fresh.refused(timeout()) == "early"
    assert play.wait(left).refused(timeout()) == "accepted"


def test_d05_no_window_can_be_called_over_before_its_end() -> None:
    assert Play().ruling().wait(RULES.referee_window - 1).refused(convene()) == "early"
    assert Play().committing().wait(RULES.vote_window + RULES.reveal_window - 1).refused(tally()) == "early"
    assert appealable().wait(RULES.appeal_window - 1).refused(settle()) == "early"
    assert Play().claimed().wait(RULES.challenge_window - 1).refused(finalise()) == "early"


def test_d05_twins_at_their_ends_they_can() -> None:
    assert Play().ruling().wait(RULES.referee_window).refused(convene()) == "accepted"
    assert Play().committing().wait(RULES.vote_window + RULES.reveal_window).refused(tally()) == "accepted"
    assert appealable().wait(RULES.appeal_window).refused(settle()) == "accepted"
    assert Play().claimed().wait(RULES.challenge_window).refused(finalise()) == "accepted"


# ---- D-06
ENDS = {
    "a ruling": moves.Rule(actor=REFEREE, dispute=0, fault=Fault.CHALLENGER, reason=NOTHING),
    "a concession": moves.Concede(actor=CHALLENGER, dispute=0),
    "a conviction": moves.Rule(actor=REFEREE, dispute=0, fault=Fault.PROVER, reason=NOTHING),
}


@pytest.mark.parametrize("end", ENDS)
def test_d06_after_the_end_nothing_moves_and_all_money_is_free(end: str) -> None:
    """A fault-proof contest's finding #168: a move after the end froze the game and its bonds."""
    before = Play().opened().until(Phase.CHOOSE)
    stale = [before.answer(), timeout(), moves.Concede(actor=PROVER, dispute=0), settle(), tally(), convene()]
    stale += [moves.Draw(actor=BEACON, dispute=0, nonce="00" * 32), moves.Dismiss(actor=OTHER, dispute=0)]
    play = Play().ruling().do(ENDS[end])
    assert {play.wait(10**6).refused(move) for move in stale} == {"settled"}
    if play.state.claims[0].status is Status.OPEN:
        play.do(finalise())
    for member in MEMBERS:
        play.do(moves.Retire(actor=member))
    play.all_out()
    assert play.state.balance == 0


def test_d06_twin_before_the_end_the_same_moves_are_taken_in_their_turn() -> None:
    play = Play().opened().until(Phase.CHOOSE)
    assert play.refused(play.answer()) == "accepted"
    assert play.refused(moves.Concede(actor=PROVER, dispute=0)) == "accepted"


# ---- D-07, E1
def test_d07_what_was_taken_out_cannot_be_taken_out_again() -> None:
    play = Play().ruling().do(ENDS["a conviction"]).wait(RULES.withdrawal_delay)
    before = play.state.balance
    amount = play.owed(CHALLENGER)
    play.do(moves.Withdraw(actor=CHALLENGER))
    assert (play.state.paid_out, play.state.balance) == (amount, before - amount)
    for _ in range(3):
        assert play.refused(moves.Withdraw(actor=CHALLENGER)) == "nothing"
    assert play.refused(moves.Withdraw(actor=TREASURY)) == "accepted"


def test_e1_the_debt_is_gone_in_the_state_in_which_the_money_goes_out() -> None:
    """Whoever is called with the money and calls back meets a state that owes it nothing."""
    play = Play().ruling().do(ENDS["a conviction"]).wait(RULES.withdrawal_delay).do(moves.Withdraw(actor=CHALLENGER))
    assert CHALLENGER not in play.state.owed


def test_e1_one_who_cannot_receive_stops_nobody_else() -> None:
    """Money is asked for: the winner's part does not wait for the treasury's."""
    play = Play().ruling().do(ENDS["a conviction"]).wait(RULES.withdrawal_delay)
    play.do(moves.Withdraw(actor=CHALLENGER))
    assert play.owed(TREASURY) > 0


# ---- D-08, E2
def test_d08_e2_bonds_are_the_balance_after_each_of_many_random_actions() -> None:
    """Every accepted move is followed by the books, and every world by an empty till (`simulator.laws`).

    A hundred thousand moves are tried by `simulator/test_simulation.py`, which counts them.
    """
    report = simulate("row D-08", events=60_000)
    assert report.total("accepted") > 6_000
    assert report.total("refused") > 3_000
    assert report.counts["accepted withdraw"] > 1_000

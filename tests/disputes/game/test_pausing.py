"""Pauses stop clocks for a while; they touch no money, and the guardian has to rest."""

from __future__ import annotations

import pytest

from tallystick.disputes.game import moves
from tallystick.disputes.game.context import game_time
from tallystick.disputes.game.state import Phase
from tests.disputes.examples import EXAMPLES
from tests.disputes.playing import GUARDIAN, MEMBERS, OTHER, PROVER, RULES, Play
from tests.disputes.refusals import final, timeout

PAUSE, RESUME = moves.Pause(actor=GUARDIAN), moves.Resume(actor=GUARDIAN)
PAID = moves.Withdraw(actor=PROVER)


@pytest.mark.parametrize("move", EXAMPLES, ids=lambda move: move.kind)
def test_in_a_pause_nothing_is_taken_but_withdrawals_and_the_end_of_it(move: moves.Move) -> None:
    play = final().do(PAUSE).wait(RULES.withdrawal_delay)
    assert play.refused(move) == ("accepted" if move.kind in ("withdraw", "resume") else "paused")


def test_what_is_owed_ripens_and_is_paid_in_a_pause() -> None:
    play = final().wait(RULES.withdrawal_delay - 1).do(PAUSE)
    assert play.refused(PAID) == "nothing"
    play.wait(1).do(PAID)
    assert play.state.paid_out == RULES.prover_bond
    assert play.state.pausing.since is not None


@pytest.mark.parametrize("phase", [Phase.PARTITION, Phase.CHOOSE, Phase.LEAF], ids=str)
def test_clocks_stand_still(phase: Phase) -> None:
    play = Play().opened().until(phase).wait(100)
    left = play.left()
    play.do(PAUSE).wait(RULES.pause_max - 1)
    assert play.left() == left
    play.do(RESUME)
    assert play.left() == left
    play.wait(left)
    assert play.refused(timeout()) == "accepted"


def test_a_pause_ends_by_itself() -> None:
    play = Play().opened().do(PAUSE).wait(RULES.pause_max - 1)
    assert play.refused(play.answer()) == "paused"
    play.wait(1)
    assert play.left() == RULES.clock
    assert play.refused(RESUME) == "running"
    play.wait(7).do(play.answer())
    assert play.dispute.clocks.prover == RULES.clock - 7
    assert play.state.pausing.since is None


def test_the_guardian_rests_from_the_end_of_a_pause_on_even_if_nobody_said_that_it_was_over() -> None:
    play = Play().opened().do(PAUSE).wait(RULES.pause_max + RULES.pause_rest - 1)
    assert play.refused(PAUSE) == "rest"
    assert play.wait(1).refused(PAUSE) == "accepted"


def test_a_second_pause_does_not_prolong_the_first() -> None:
    play = Play().opened().do(PAUSE).wait(100)
    assert play.refused(PAUSE) == "paused"
    assert play.wait(RULES.pause_max - 100).refused(play.answer()) == "accepted"


def test_game_time_is_real_time_less_all_pauses() -> None:
    play = Play()
    began, lasted = play.now, 0
    for seconds in (5, 70, RULES.pause_max):
        play.wait(RULES.pause_rest).do(PAUSE).wait(seconds)
        lasted += seconds
        if seconds < RULES.pause_max:
            play.do(RESUME)
        assert play.time == play.now - lasted
    assert game_time(play.state, play.now + 11) == play.now + 11 - lasted
    assert play.now - began == lasted + 3 * RULES.pause_rest


def test_a_guardian_that_always_pauses_delays_a_dispute_by_its_share_of_the_time_and_no_more() -> None:
    play = Play().opened()
    began = play.now
    while play.refused(timeout()) != "accepted":
        if play.refused(PAUSE) == "accepted":
            play.do(PAUSE)
        play.wait(3600)
    pauses = 1 + RULES.clock // RULES.pause_rest
    assert play.now - began <= RULES.clock + pauses * RULES.pause_max + 3600


def test_a_stake_comes_back_after_the_longest_pause() -> None:
    play = Play().enlisted(MEMBERS[:1]).do(PAUSE)
    retire = moves.Retire(actor=MEMBERS[0])
    assert play.refused(retire) == "paused"
    play.wait(RULES.pause_max).do(retire)
    assert play.owed(MEMBERS[0]) == RULES.stake


def test_nobody_else_ends_a_pause() -> None:
    play = Play().claimed().do(PAUSE)
    assert play.refused(moves.Resume(actor=OTHER)) == "actor"
    assert play.refused(RESUME) == "accepted"

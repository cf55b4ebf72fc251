"""Money is owed, rests, and is taken out once (row D-07)."""

from __future__ import annotations

from tallystick.disputes.game.context import CREDITS_PER_WITHDRAWAL, credit, withdrawable
from tallystick.disputes.game.moves import Withdraw
from tallystick.disputes.game.state import State
from tests.disputes.playing import GUARDIAN, OTHER, PROVER, RULES, Play
from tests.disputes.refusals import final


def owing(*amounts: int, name: str = PROVER, seconds: int = 10) -> Play:
    """A game that owes these amounts, one every few seconds."""
    play = Play()
    state = State(RULES, balance=sum(amounts))
    for place, amount in enumerate(amounts):
        state = credit(state, name, amount, play.now + place * seconds)
    play.state = state
    return play


def test_money_is_taken_out_once() -> None:
    play = final().wait(RULES.withdrawal_delay)
    play.do(Withdraw(actor=PROVER))
    assert play.state.paid_out == RULES.prover_bond
    assert play.state.balance == len(play.state.members) * RULES.stake
    assert PROVER not in play.state.owed
    assert play.refused(Withdraw(actor=PROVER)) == "nothing"


def test_only_what_is_ripe_is_taken_out() -> None:
    play = owing(1, 20, 300).wait(RULES.withdrawal_delay + 10)
    assert withdrawable(play.state, PROVER, play.now) == 21
    play.do(Withdraw(actor=PROVER))
    assert (play.state.paid_out, play.owed(PROVER)) == (21, 300)
    assert play.refused(Withdraw(actor=PROVER)) == "nothing"
    assert play.wait(10).do(Withdraw(actor=PROVER)).state.paid_out == 321


def test_many_credits_are_taken_out_in_several_moves() -> None:
    count = 2 * CREDITS_PER_WITHDRAWAL + 3
    play = owing(*[1] * count, seconds=0).wait(RULES.withdrawal_delay)
    taken = []
    while play.owed(PROVER):
        before = play.state.paid_out
        taken.append(withdrawable(play.state, PROVER, play.now))
        play.do(Withdraw(actor=PROVER))
        assert play.state.paid_out - before == taken[-1]
    assert taken == [CREDITS_PER_WITHDRAWAL, CREDITS_PER_WITHDRAWAL, 3]


def test_nobody_takes_out_what_somebody_else_is_owed() -> None:
    play = owing(5).wait(RULES.withdrawal_delay)
    for name in (OTHER, GUARDIAN, RULES.treasury):
        assert play.refused(Withdraw(actor=name)) == "nothing"
    assert play.refused(Withdraw(actor=PROVER)) == "accepted"


def test_nothing_is_no_credit() -> None:
    state = State(RULES)
    assert credit(state, PROVER, 0, 5) is state

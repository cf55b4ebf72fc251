"""Who gets what, to the last unit, for every way in which a dispute can end."""

from __future__ import annotations

import pytest

from tallystick.disputes.game import moves
from tallystick.disputes.game.state import Phase, Status
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import (
    CHALLENGER,
    MEMBERS,
    OTHER,
    PROVER,
    REFEREE,
    RULES,
    TREASURY,
    Play,
)
from tests.disputes.refusals import convene, finalise, slashed_twice_disputed, tally
from tests.support.simulator.trees import NOTHING

BOND, STAKE, FEE, APPEAL = RULES.prover_bond, RULES.challenger_bond, RULES.vote_fee, RULES.appeal_bond
DEPOSIT = RULES.deposit
HALF = BOND * RULES.reward // 1000


def gains(play: Play, *names: str) -> list[int]:
    """What is owed to each."""
    return [play.owed(name) for name in names]


def rule(fault: Fault) -> moves.Rule:
    return moves.Rule(actor=REFEREE, dispute=0, fault=fault, reason=NOTHING)


def test_a_prover_at_fault_pays_the_challenger_and_the_treasury() -> None:
    play = Play().ruling().do(rule(Fault.PROVER))
    assert gains(play, PROVER, CHALLENGER, TREASURY) == [0, STAKE + DEPOSIT + HALF, BOND - HALF]
    assert play.state.claims[0].status is Status.SLASHED


def test_a_challenger_at_fault_pays_the_prover_and_keeps_what_no_committee_took() -> None:
    play = Play().ruling().do(rule(Fault.CHALLENGER))
    assert gains(play, PROVER, CHALLENGER, TREASURY) == [STAKE, DEPOSIT, 0]
    assert play.state.claims[0].status is Status.OPEN


def test_where_nobody_is_at_fault_both_bonds_go_back() -> None:
    play = Play().ruling().do(rule(Fault.NOBODY)).wait(10**7).do(finalise())
    assert gains(play, PROVER, CHALLENGER, TREASURY) == [BOND, STAKE + DEPOSIT, 0]


def test_the_challenger_gets_the_fees_of_the_first_committee_back_from_a_prover_at_fault() -> None:
    play = Play().committing().counted(Fault.PROVER).settled()
    reward = (BOND - 3 * FEE) * RULES.reward // 1000
    assert gains(play, PROVER, CHALLENGER) == [0, STAKE + DEPOSIT + reward]
    assert play.owed(TREASURY) == BOND - 3 * FEE - reward
    assert gains(play, *play.sitting) == [FEE] * 3


@pytest.mark.parametrize(
    ("fault", "expected"), [(Fault.CHALLENGER, [STAKE, 0]), (Fault.NOBODY, [0, STAKE])], ids=["challenger", "nobody"]
)
def test_else_the_fees_are_the_challengers(fault: Fault, expected: list[int]) -> None:
    play = Play().committing().counted(fault).settled()
    assert gains(play, PROVER, CHALLENGER, TREASURY) == [*expected, 0]


@pytest.mark.parametrize("reward", [0, 1, 333, 1000])
def test_shares_are_whole_and_nothing_is_lost_in_rounding(reward: int) -> None:
    play = Play(prover_bond=1_000_003, reward=reward).ruling().do(rule(Fault.PROVER))
    share = 1_000_003 * reward // 1000
    assert gains(play, CHALLENGER, TREASURY) == [STAKE + DEPOSIT + share, 1_000_003 - share]


def _counted(first: Fault) -> Play:
    return Play(appeals=1).committing().counted(first)


@pytest.mark.parametrize(
    ("first", "by", "second", "prover", "challenger"),
    [
        (Fault.PROVER, PROVER, Fault.PROVER, 0, STAKE + APPEAL),
        (Fault.PROVER, PROVER, Fault.CHALLENGER, STAKE + APPEAL, 0),
        (Fault.PROVER, PROVER, Fault.NOBODY, APPEAL, STAKE),
        (Fault.CHALLENGER, CHALLENGER, Fault.PROVER, 0, STAKE + APPEAL),
        (Fault.CHALLENGER, CHALLENGER, Fault.CHALLENGER, STAKE + APPEAL, 0),
        (Fault.CHALLENGER, CHALLENGER, Fault.NOBODY, 0, STAKE + APPEAL),
        (Fault.NOBODY, PROVER, Fault.CHALLENGER, STAKE + APPEAL, 0),
        (Fault.NOBODY, PROVER, Fault.NOBODY, 0, STAKE + APPEAL),
        (Fault.NOBODY, CHALLENGER, Fault.PROVER, 0, STAKE + APPEAL),
        (Fault.NOBODY, CHALLENGER, Fault.NOBODY, APPEAL, STAKE),
    ],
)
def test_an_appeal_that_was_right_costs_its_fees_and_one_that_was_wrong_its_bond_too(
    first: Fault, by: str, second: Fault, prover: int, challenger: int
) -> None:
    play = _counted(first)
    play.do(play.appeal(by)).drawn().counted(second)
    assert play.dispute.fault is second
    made_good = 0
    if second is Fault.PROVER:
        reward = (BOND - 3 * FEE) * RULES.reward // 1000
        made_good = 3 * FEE + reward
        assert play.owed(TREASURY) == BOND - made_good
    assert gains(play, PROVER, CHALLENGER) == [prover, challenger + made_good]
    assert sum(play.owed(member) for member in MEMBERS) == (3 + 7) * FEE


def test_two_appeals_are_returned_each_on_its_own() -> None:
    play = Play().committing().counted(Fault.PROVER)
    play.do(play.appeal(PROVER)).drawn().counted(Fault.CHALLENGER)
    play.do(play.appeal(CHALLENGER)).drawn().counted(Fault.CHALLENGER)
    assert play.dispute.phase is Phase.SETTLED
    assert gains(play, PROVER, CHALLENGER, TREASURY) == [STAKE + APPEAL + APPEAL, 0, 0]


@pytest.mark.parametrize("phase", [Phase.PARTITION, Phase.RULING, Phase.DRAWING, Phase.COMMITTING], ids=str)
def test_a_dismissed_challenger_gets_everything_back(phase: Phase) -> None:
    play = Play().enlisted().claimed().contested(actor=OTHER).contested().until(Phase.RULING, number=1)
    if phase is Phase.PARTITION:
        play = slashed_twice_disputed()
        assert play.do(moves.Dismiss(actor=PROVER, dispute=1)).owed(OTHER) == STAKE + DEPOSIT
        return
    if phase is not Phase.RULING:
        play.do(moves.Convene(actor=REFEREE, dispute=1))
    if phase is Phase.COMMITTING:
        play.do(moves.Draw(actor=RULES.beacon, dispute=1, nonce="00" * 32))
    play.do(moves.Concede(actor=PROVER, dispute=0))
    assert play.state.disputes[1].phase is phase
    play.do(moves.Dismiss(actor=OTHER, dispute=1))
    assert play.owed(CHALLENGER) == STAKE + DEPOSIT
    assert play.state.disputes[1].fault is Fault.NOBODY
    assert all(member.serving == 0 for member in play.state.members.values())


def test_a_dismissal_returns_bonds_of_appeals_and_not_the_fees_that_were_spent() -> None:
    play = Play().enlisted().claimed().contested().contested(actor=OTHER).until(Phase.RULING)
    play.do(convene(REFEREE)).drawn().counted(Fault.PROVER).do(play.appeal(PROVER))
    play.do(moves.Concede(actor=PROVER, dispute=1)).do(moves.Dismiss(actor=OTHER, dispute=0))
    assert play.owed(PROVER) == APPEAL
    assert play.owed(CHALLENGER) == STAKE + DEPOSIT - 3 * FEE + 7 * FEE


def test_a_prover_that_accuses_itself_loses_the_treasurys_part() -> None:
    play = Play().claimed().contested(actor=OTHER).do(moves.Concede(actor=PROVER, dispute=0))
    assert gains(play, OTHER, PROVER) == [STAKE + DEPOSIT + HALF, 0]
    assert play.owed(TREASURY) == BOND - HALF > 0


def test_the_prover_gets_its_bond_once_whatever_number_of_challengers_were_wrong() -> None:
    play = Play().claimed()
    for number in range(5):
        play.contested(actor=f"{900 + number:064x}")
    for number in range(5):
        play.do(moves.Concede(actor=f"{900 + number:064x}", dispute=number))
    play.wait(10**7).do(finalise())
    assert play.owed(PROVER) == BOND + 5 * STAKE
    play.all_out()
    assert play.state.balance == 0


def test_in_the_end_everything_that_came_in_has_gone_out() -> None:
    play = Play().committing().counted(Fault.PROVER, Fault.CHALLENGER, Fault.PROVER)
    play.do(play.appeal(PROVER)).drawn().voted(Fault.PROVER).do(tally()).settled()
    play.wait(RULES.holding)
    for member in MEMBERS:
        play.do(moves.Retire(actor=member))
    came_in = play.state.balance
    out = play.all_out()
    assert sum(out.values()) == came_in == play.state.paid_out
    assert play.state.balance == 0

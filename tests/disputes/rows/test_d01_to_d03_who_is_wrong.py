"""D-01 a bad operator is located; D-02 a challenger that lies pays; D-03 of two that are wrong both lose."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pytest

from tallystick.disputes.game import moves
from tallystick.disputes.game.state import Phase, Status
from tallystick.verdicts.verdict import Fault
from tests.disputes.parties.in_memory_game import CHEAT, Accuser, InMemoryGame
from tests.disputes.playing import CHALLENGER, HONEST, OTHER, PROVER, REFEREE, RULES, Play
from tests.support.simulator.trees import NOTHING, Run, Truth
from tests.support.toy_game import Counting

NODES = 1000


def judged(play: Play) -> Fault:
    """What a judge finds who knows the trees."""
    truth = Truth()
    truth.learn([play.run.top(), *(play.run.below(step) for step in range(min(play.run.steps, 9)))])
    return truth.ruling(play.dispute)


def ruled(play: Play) -> Play:
    """And the referee says so."""
    return play.do(moves.Rule(actor=REFEREE, dispute=0, fault=judged(play), reason=NOTHING))


# ---- D-01
@pytest.mark.parametrize("faulty", [0, 1, 499, 500, 511, 512, 998, 999, *Random(1).sample(range(NODES), 4)])
def test_d01_one_bad_operator_of_a_thousand_is_located_in_ten_rounds(faulty: int) -> None:
    run = Run(0, steps=NODES, width=1, levels=1, fault=(faulty, 0))
    play = Play(run=run, ways=2).claimed().contested()
    rounds = 0
    while play.dispute.phase is Phase.PARTITION:
        play.do(play.answer()).do(play.answer())
        rounds += 1
    assert rounds <= math.ceil(math.log2(NODES)) == 10
    assert play.do(play.answer()).dispute.low == faulty
    assert ruled(play).dispute.fault is Fault.PROVER


@pytest.mark.parametrize("place", [0, 500, 999])
def test_d01_twin_a_run_without_a_bad_operator_is_cut_down_and_cleared(place: int) -> None:
    play = Play(run=Run(0, steps=NODES, width=1, levels=1), ways=2).claimed().contested(low=place, high=NODES)
    play.until(Phase.RULING)
    assert ruled(play).dispute.fault is Fault.CHALLENGER
    assert play.state.claims[0].status is Status.OPEN


def test_d01_the_programs_of_both_sides_find_the_addition_that_was_wrong(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    game.play(game.prover(Counting(cheat=CHEAT)), game.challenger(), game.referee())
    game.leave()
    (dispute,) = game.coordinator.state.disputes
    assert (dispute.fault, dispute.low) == (Fault.PROVER, CHEAT.operator)


# ---- D-02
def test_d02_a_challenger_that_lies_pays_the_prover() -> None:
    play = ruled(Play(run=HONEST).opened().until(Phase.RULING))
    assert play.dispute.fault is Fault.CHALLENGER
    assert play.owed(PROVER) == RULES.challenger_bond
    assert play.owed(CHALLENGER) == RULES.deposit


def test_d02_twin_a_challenger_that_is_right_is_paid() -> None:
    play = ruled(Play().opened().until(Phase.RULING))
    assert play.dispute.fault is Fault.PROVER
    assert play.owed(CHALLENGER) > RULES.challenger_bond + RULES.deposit


def test_d02_the_programs_clear_an_honest_prover_of_an_accuser(tmp_path: Path) -> None:
    game = InMemoryGame(tmp_path)
    game.play(game.prover(Counting()), game.challenger(doubter=Accuser()), game.referee())
    game.leave()
    assert [each.fault for each in game.coordinator.state.disputes] == [Fault.CHALLENGER]
    assert [each.status for each in game.coordinator.state.claims] == [Status.FINAL]


# ---- D-03
def test_d03_of_two_bad_claims_both_are_slashed() -> None:
    """Everybody may contest everything: each of two cheats is the other's challenger."""
    play = Play().enlisted().claimed(actor=PROVER).claimed(actor=OTHER)
    play.contested(actor=OTHER, claim=0).contested(actor=PROVER, claim=1)
    for number in range(2):
        play.until(Phase.RULING, number=number)
        play.do(moves.Rule(actor=REFEREE, dispute=number, fault=Fault.PROVER, reason=NOTHING))
    assert {claim.status for claim in play.state.claims} == {Status.SLASHED}
    out = play.all_out()
    paid = RULES.prover_bond + RULES.challenger_bond + RULES.deposit
    assert out[PROVER] < paid
    assert out[OTHER] < paid


def test_d03_twin_the_honest_one_of_two_claims_stands() -> None:
    play = Play().enlisted().claimed(actor=PROVER)
    play.run = HONEST
    play.claimed(actor=OTHER).contested(actor=PROVER, claim=1).until(Phase.RULING)
    assert ruled(play).dispute.fault is Fault.CHALLENGER
    assert [claim.status for claim in play.state.claims] == [Status.OPEN, Status.OPEN]


def test_d03_a_challenger_that_points_at_the_wrong_place_loses_and_the_bad_claim_can_still_be_slashed() -> None:
    """Both are wrong: the challenger pays, and an honest one finds the fault after it."""
    play = Play().enlisted().claimed().contested(low=0, high=5).until(Phase.RULING)
    assert ruled(play).dispute.fault is Fault.CHALLENGER
    play.contested(actor=OTHER).until(Phase.RULING, number=1)
    play.do(moves.Rule(actor=REFEREE, dispute=1, fault=Fault.PROVER, reason=NOTHING))
    assert play.state.claims[0].status is Status.SLASHED
    assert play.owed(CHALLENGER) == RULES.deposit
    assert play.owed(PROVER) == RULES.challenger_bond < RULES.prover_bond

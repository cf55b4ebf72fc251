"""G3: the graph that was committed is the one that was executed; places are unique, and no leaf has two readings.

The judge's part (attributes, bindings, weights) is in `test_judge.py` and `opened/test_judging.py`.
"""

from __future__ import annotations

import pytest

from tallystick.disputes.game import moves
from tallystick.disputes.game.state import Phase
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import CHALLENGER, OTHER, PROVER, REFEREE, Play
from tests.support.simulator.trees import NOTHING, Run

EDGE = Run(0, steps=9, width=7, fault=(5, 3), is_edge=True)


def test_g3_an_operator_that_reads_another_value_than_was_given_is_convicted_without_anybodys_word() -> None:
    play = Play(run=EDGE, members=(), referee=None).claimed().contested().until(Phase.RULING)
    play.do(moves.Prove(actor=OTHER, dispute=0, evidence=EDGE.below(5).evidence(play.dispute.low)))
    assert play.dispute.fault is Fault.PROVER


def test_g3_twin_every_edge_of_an_honest_step_stands() -> None:
    honest = Run(0, steps=9, width=7)
    for place in range(1, 7):
        play = Play(run=Run(0, steps=7, width=1, levels=1)).claimed().contested(low=place, high=place + 1)
        play.until(Phase.RULING)
        evidence = play.run.top().evidence(place)
        assert play.refused(moves.Prove(actor=CHALLENGER, dispute=0, evidence=evidence)) == "evidence"
    assert honest.below(5).faulty is None


@pytest.mark.parametrize("place", [1, 3, 5])
def test_g3_a_leaf_has_one_place(place: int) -> None:
    """A cut is not ambiguous: the same leaf with the proof of any other place is refused."""
    play = Play().opened()
    right = play.answer()
    index = (1, 3, 5).index(place)
    for other in range(9):
        cut = play.run.top().cut(other)
        cuts = (*right.cuts[:index], cut, *right.cuts[index + 1 :])
        code = play.refused(right.model_copy(update={"cuts": cuts}))
        assert code == ("accepted" if other == place else "proof")


def test_g3_data_that_does_not_hang_together_is_protested_against_instead_of_chosen_from() -> None:
    play = Play().opened().until(Phase.CHOOSE)
    play.do(moves.Protest(actor=CHALLENGER, dispute=0, turn=play.dispute.turn, ground="structure"))
    assert (play.dispute.phase, play.dispute.data) == (Phase.RULING, NOTHING)
    assert play.do(moves.Rule(actor=REFEREE, dispute=0, fault=Fault.PROVER, reason=NOTHING)).owed(CHALLENGER) > 0


def test_g3_the_record_that_is_left_has_to_be_opened_before_operators_are_named() -> None:
    play = Play().opened().until(Phase.LEAF)
    move = play.answer()
    wrong = move.model_copy(update={"leaf": EDGE.below(5).leaves[0].hex()})
    assert play.refused(wrong) == "proof"
    play.do(move)
    assert (play.dispute.level, play.dispute.leaf) == (1, move.leaf)
    assert play.dispute.root == play.run.below(5).root
    assert play.state.claims[0].prover == PROVER

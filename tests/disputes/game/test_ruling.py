"""From an opened leaf to a ruling: the referee, evidence, or a committee."""

from __future__ import annotations

import pytest

from tallystick.disputes.game import moves
from tallystick.disputes.game.state import Phase
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import CHALLENGER, MEMBERS, OTHER, REFEREE, RULES, Play
from tests.disputes.refusals import convene
from tests.support.simulator.trees import NOTHING, Run

EDGE = Run(0, steps=9, width=7, fault=(5, 3), is_edge=True)


@pytest.mark.parametrize("fault", list(Fault))
def test_the_referees_word_ends_a_dispute(fault: Fault) -> None:
    play = Play().ruling()
    rule = moves.Rule(actor=REFEREE, dispute=0, fault=fault, reason=NOTHING)
    assert play.refused(rule.model_copy(update={"actor": MEMBERS[0]})) == "actor"
    assert play.do(rule).dispute.fault is fault


def test_without_a_referee_anybody_calls_a_committee_after_its_window() -> None:
    play = Play(referee=None).ruling()
    assert play.refused(convene()) == "early"
    assert play.refused(convene(REFEREE)) == "early"
    assert play.wait(RULES.referee_window).do(convene()).dispute.phase is Phase.DRAWING


def test_a_referee_that_cannot_tell_calls_a_committee_at_once() -> None:
    assert Play().ruling().do(convene(REFEREE)).dispute.phase is Phase.DRAWING


def test_a_referee_may_still_rule_after_its_window_while_nobody_has_called_a_committee() -> None:
    play = Play().ruling().wait(10**6)
    rule = moves.Rule(actor=REFEREE, dispute=0, fault=Fault.PROVER, reason=NOTHING)
    assert play.refused(rule) == "accepted"
    assert play.do(convene()).refused(rule) == "phase"


def test_evidence_by_anybody_convicts_without_referee_or_committee() -> None:
    play = Play(run=EDGE, referee=None, members=()).claimed().contested().until(Phase.RULING)
    play.do(moves.Prove(actor=OTHER, dispute=0, evidence=EDGE.below(5).evidence(3)))
    assert play.dispute.fault is Fault.PROVER
    assert play.owed(CHALLENGER) > RULES.challenger_bond


def test_evidence_about_an_honest_operator_is_refused_and_changes_nothing() -> None:
    honest = Run(0, steps=9, width=7)
    play = Play(run=honest).enlisted().claimed().contested(low=5, high=6).until(Phase.RULING)
    evidence = honest.below(5).evidence(play.dispute.low)
    assert play.refused(moves.Prove(actor=CHALLENGER, dispute=0, evidence=evidence)) == "evidence"
    assert play.do(convene(REFEREE)).dispute.phase is Phase.DRAWING


def test_evidence_does_not_answer_a_protest() -> None:
    play = Play(run=EDGE).opened().until(Phase.LEAF)
    play.do(play.answer())
    play.do(play.answer())
    play.do(moves.Protest(actor=CHALLENGER, dispute=0, turn=play.dispute.turn))
    assert play.refused(moves.Prove(actor=OTHER, dispute=0, evidence=EDGE.below(5).evidence(3))) == "level"

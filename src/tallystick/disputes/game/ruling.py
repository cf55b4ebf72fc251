"""From the opened leaf to a ruling: the referee, a check that anybody can make, or a committee."""

from __future__ import annotations

from tallystick.disputes.game.cheap import convict
from tallystick.disputes.game.committee import seats
from tallystick.disputes.game.context import Context, allow
from tallystick.disputes.game.moves import Convene, Pinpoint, Prove, Rule
from tallystick.disputes.game.settlement import settle
from tallystick.disputes.game.state import Dispute, Phase, State
from tallystick.judging.fault import Fault


def rule(at: Context, move: Rule) -> State:
    """The referee's ruling ends the dispute; if the referee cannot decide, it convenes a committee instead."""
    return settle(at, move.dispute, move.fault)


def pinpoint(at: Context, move: Pinpoint) -> State:
    """The challenger names one wrong element of the opened operator; it may replace it by another."""
    dispute = at.dispute(move.dispute)
    allow(_is_operator(dispute), "level", "only an operator that was opened has elements")
    return at.change_dispute(move.dispute, element=(move.result, move.element)).state


def prove(at: Context, move: Prove) -> State:
    """Evidence that convicts the prover ends the dispute; other evidence is refused."""
    dispute = at.dispute(move.dispute)
    allow(_is_operator(dispute), "level", "evidence is about an operator that was opened")
    convict(dispute, move.evidence)
    return settle(at, move.dispute, Fault.PROVER)


def convene(at: Context, move: Convene) -> State:
    """The referee, or anybody after its window, calls a committee; without members the dispute ends undecided."""
    dispute = at.dispute(move.dispute)
    in_time = at.time >= dispute.deadline or move.actor == at.rules.referee
    allow(in_time, "early", "the referee's window is still open")
    found = seats(at.state, dispute, at.rules.committee)
    if not found:
        return settle(at, move.dispute, Fault.NOBODY)
    deadline = at.time + at.rules.vote_window
    return at.change_dispute(move.dispute, phase=Phase.DRAWING, seats=found, deadline=deadline).state


def _is_operator(dispute: Dispute) -> bool:
    """Whether the ruling is about a revealed operator, and not about a record or a protest."""
    return dispute.level == 1 and dispute.ground == "leaf"

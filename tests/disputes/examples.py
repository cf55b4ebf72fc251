"""One example of every move."""

from __future__ import annotations

from tallystick.disputes.game import moves
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import (
    BEACON,
    CHALLENGER,
    GUARDIAN,
    MEMBERS,
    NONCE,
    OTHER,
    PLANTER,
    PROVER,
    REFEREE,
    SALT,
)
from tests.support.simulator.trees import NOTHING, Run

TOP = Run(0, steps=9, width=7, fault=(5, 3)).top()
OPERATORS = Run(0, steps=9, width=7, fault=(5, 3), is_edge=True).below(5)
ROUND = {"dispute": 0}
TURN = {"dispute": 0, "turn": 0}
LEAF = {"leaf": TOP.cut(5).leaf, "proof": TOP.cut(5).proof, "data": NOTHING}
CUTS = tuple(TOP.cut(place) for place in (1, 3, 5))

EXAMPLES: list[moves.Move] = [
    moves.Post(actor=PROVER, value=1_000_000, root=TOP.root, size=9, statement=NOTHING, seal=SALT),
    moves.Contest(actor=CHALLENGER, value=156_000, claim=0, low=0, high=9),
    moves.Partition(actor=PROVER, cuts=CUTS, data=NOTHING, **TURN),
    moves.Choose(actor=CHALLENGER, child=2, **TURN),
    moves.Protest(actor=CHALLENGER, ground="budget", **TURN),
    moves.Descend(actor=PROVER, root=OPERATORS.root, size=7, **LEAF, **TURN),
    moves.Reveal(actor=PROVER, **LEAF, **TURN),
    moves.Pinpoint(actor=CHALLENGER, result=0, element=(1 << 48) - 1, **ROUND),
    moves.Concede(actor=PROVER, **ROUND),
    moves.Timeout(actor=OTHER, **ROUND),
    moves.Rule(actor=REFEREE, fault=Fault.NOBODY, reason=NOTHING, **ROUND),
    moves.Prove(actor=OTHER, evidence=OPERATORS.evidence(3), **ROUND),
    moves.Convene(actor=OTHER, **ROUND),
    moves.Draw(actor=BEACON, nonce=NONCE, **ROUND),
    moves.Vote(actor=MEMBERS[0], commitment=NONCE, **ROUND),
    moves.Disclose(actor=MEMBERS[0], vote=Fault.PROVER, salt=SALT, **ROUND),
    moves.Tally(actor=OTHER, **ROUND),
    moves.Appeal(actor=PROVER, value=114_000, **ROUND),
    moves.Settle(actor=OTHER, **ROUND),
    moves.Dismiss(actor=OTHER, **ROUND),
    moves.Unseal(actor=PLANTER, answer=Fault.CHALLENGER, salt=SALT, **ROUND),
    moves.Finalise(actor=OTHER, claim=0),
    moves.Enlist(actor=MEMBERS[0], value=200_000),
    moves.Retire(actor=MEMBERS[0]),
    moves.Withdraw(actor=PROVER),
    moves.Pause(actor=GUARDIAN),
    moves.Resume(actor=GUARDIAN),
]

"""Every refusal of the game: how to get it, and a twin that differs in one thing and is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tallystick.disputes.game import moves, voting
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Phase
from tallystick.verdicts.verdict import Fault
from tests.disputes.playing import (
    CHALLENGER,
    GUARDIAN,
    HONEST,
    MEMBERS,
    OTHER,
    PLANTER,
    PROVER,
    REFEREE,
    RULES,
    SALT,
    Play,
    party,
)
from tests.disputes.simulator.mutants import Check

Made = tuple[Play, Move]


class Case(NamedTuple):
    """One refusal by one check, and its twin."""

    name: str
    check: Check
    refused: Callable[[], Made]
    twin: Callable[[], Made]


def at(phase: Phase) -> Play:
    """A game whose bisection stands at `phase`."""
    return Play().opened().until(phase)


def ready(play: Play, move: Move | None = None) -> Made:
    """A game, and the right move of the party to move."""
    return play, move or play.answer()


def changed(play: Play, **changes: object) -> Made:
    """A game, and the right move with something else about it."""
    return play, play.answer().model_copy(update=changes)


def settle() -> moves.Settle:
    """Anybody may."""
    return moves.Settle(actor=OTHER, dispute=0)


def timeout(number: int = 0) -> moves.Timeout:
    """Anybody may."""
    return moves.Timeout(actor=OTHER, dispute=number)


def convene(actor: str = OTHER) -> moves.Convene:
    """Anybody may, in time."""
    return moves.Convene(actor=actor, dispute=0)


def tally() -> moves.Tally:
    """Anybody may."""
    return moves.Tally(actor=OTHER, dispute=0)


def finalise(claim: int = 0) -> moves.Finalise:
    """Anybody may."""
    return moves.Finalise(actor=OTHER, claim=claim)


def slashed_twice_disputed() -> Play:
    """A claim with two disputes, of which the first has slashed it."""
    play = Play().enlisted().claimed().contested().contested(actor=OTHER)
    return play.do(moves.Concede(actor=PROVER, dispute=0))


def final() -> Play:
    """A claim whose window is over."""
    return Play().enlisted().claimed().wait(RULES.challenge_window).do(finalise())


def revealing() -> Play:
    """A committee that has committed to its votes."""
    play = Play().committing()
    for member in play.sitting:
        play.do(play.vote(member, Fault.PROVER))
    return play


def appealable(*votes: Fault) -> Play:
    """A finding, against the prover by default."""
    return Play().committing().counted(*(votes or (Fault.PROVER,)))


def planted(answer: Fault = Fault.PROVER) -> Play:
    """A settled dispute over a planted claim, in which the first member voted otherwise."""
    play = Play().enlisted().claimed(seal=voting.seal(PROVER, answer, SALT)).contested().until(Phase.RULING)
    play.do(convene(REFEREE)).drawn()
    return play.counted(Fault.NOBODY, answer, answer).settled()


def unseal(answer: Fault = Fault.PROVER) -> moves.Unseal:
    """The planter shows the answer."""
    return moves.Unseal(actor=PLANTER, dispute=0, answer=answer, salt=SALT)


def paused() -> Play:
    """A dispute at its first move, with game time stopped."""
    return Play().opened().do(moves.Pause(actor=GUARDIAN))


def late(seconds: int) -> Play:
    """A bisection whose prover has so many seconds left."""
    play = at(Phase.PARTITION)
    return play.wait(play.left() - seconds)


def wait_then(play: Play, seconds: int, move: Move) -> Made:
    """A move so many seconds later."""
    return play.wait(seconds), move


def with_pool(count: int) -> Play:
    """A finding against the prover, with so many members to draw."""
    play = Play().enlisted(MEMBERS[:count]).claimed().contested().until(Phase.RULING)
    return play.do(convene(REFEREE)).drawn().counted(Fault.PROVER)


def member_vote(play: Play, late_by: int | None = None) -> Made:
    """A vote of the first member, some seconds after the time for it."""
    if late_by is not None:
        play.wait(play.dispute.deadline - play.now + late_by)
    return play, play.vote(play.sitting[0], Fault.PROVER)


def disclosure(play: Play, seconds: int, vote: Fault = Fault.PROVER) -> Made:
    """The first member's vote is shown some seconds from now."""
    return wait_then(play, seconds, play.disclose(play.sitting[0], vote))


def one_voted(again: bool) -> Made:
    """The first member has committed to a vote; it, or the second one, votes."""
    play = Play().committing()
    play.do(play.vote(play.sitting[0], Fault.PROVER))
    return play, play.vote(play.sitting[0 if again else 1], Fault.PROVER)


def one_disclosed(again: bool) -> Made:
    """The first member has disclosed its vote; it, or the second one, does."""
    play = revealing()
    play.do(play.disclose(play.sitting[0], Fault.PROVER))
    return play, play.disclose(play.sitting[0 if again else 1], Fault.PROVER)


def outsider(is_drawn: bool) -> Made:
    """A vote of a member that was drawn, or of one that was not."""
    play = Play().committing()
    member = next(each for each in MEMBERS if (each in play.sitting) == is_drawn)
    return play, play.vote(member, Fault.PROVER)


def retiring(play: Play, name: str) -> Made:
    """A member asks for its stake."""
    return play, moves.Retire(actor=name)


def served(seconds: int) -> Made:
    """A member that has voted retires some seconds after the count."""
    play = appealable()
    member = play.sitting[0]
    return play.wait(seconds), moves.Retire(actor=member)


def repaused(seconds: int) -> Made:
    """The guardian pauses again some seconds after a pause ended."""
    play = Play().claimed().do(moves.Pause(actor=GUARDIAN)).wait(9).do(moves.Resume(actor=GUARDIAN))
    return play.wait(seconds), moves.Pause(actor=GUARDIAN)


def owed(seconds: int) -> Made:
    """The prover's bond is owed since so many seconds."""
    return wait_then(final(), seconds, moves.Withdraw(actor=PROVER))


def proof_at_a_record(levels: int) -> Made:
    """Evidence about an edge, where a record or an operator was revealed."""
    play = revealed(levels)
    tree, place = (play.run.top(), play.dispute.low) if levels == 1 else (play.run.below(5), 3)
    return play, moves.Prove(actor=OTHER, dispute=0, evidence=tree.evidence(place))


def named_at_a_record(levels: int) -> Made:
    """An element is named, where a record or an operator was revealed."""
    return revealed(levels), moves.Pinpoint(actor=CHALLENGER, dispute=0, result=0, element=0)


def revealed(levels: int) -> Play:
    """A leaf of the claim itself was revealed: a record, or in one-round mode an operator."""
    run = HONEST.__class__(0, 9, 7, levels, (5, 3) if levels == 2 else (5, 0), is_edge=True)
    play = Play(run=run).opened().until(Phase.LEAF)
    cut = run.top().cut(play.dispute.low)
    who = {"actor": PROVER, "dispute": 0, "turn": play.dispute.turn}
    return play.do(moves.Reveal(**who, leaf=cut.leaf, proof=cut.proof, data=play.state.claims[0].statement))


def check(name: str) -> Check:
    """A check by its dotted name."""
    return Check(*name.split("."))


# fmt: off
CASES = [
    Case("another number of cuts", check("bisection.partition.cuts"),
         lambda: changed(at(Phase.PARTITION), cuts=at(Phase.PARTITION).answer().cuts[:2]),
         lambda: ready(at(Phase.PARTITION))),
    Case("a child that there is not", check("bisection.choose.child"),
         lambda: changed(at(Phase.CHOOSE), child=4), lambda: changed(at(Phase.CHOOSE), child=3)),
    Case("below an operator there is nothing", check("bisection.descend.level"),
         lambda: ready(p := Play(run=HONEST.__class__(0, 9, 7, 1, (5, 0))).opened().until(Phase.LEAF), moves.Descend(
             **{k: v for k, v in p.answer() if k != "kind"}, root="00" * 32, size=2)),
         lambda: ready(at(Phase.LEAF))),
    Case("a timeout one second early", check("bisection.timeout.early"),
         lambda: (late(1), timeout()), lambda: (late(0), timeout())),
    Case("a draw given up one second early", check("bisection.timeout.early"),
         lambda: wait_then(Play().drawing(), RULES.vote_window - 1, timeout()),
         lambda: wait_then(Play().drawing(), RULES.vote_window, timeout())),
    Case("a final claim is contested", check("bisection.contest.closed"),
         lambda: (p := final(), p.contest()), lambda: (p := Play().claimed(), p.contest())),
    Case("a slashed claim is contested", check("bisection.contest.closed"),
         lambda: (p := slashed_twice_disputed(), p.contest(actor=party(50))),
         lambda: (p := Play().claimed().contested(), p.contest(actor=party(50)))),
    Case("a claim is contested when its window ends", check("bisection.contest.window"),
         lambda: (p := Play().claimed().wait(RULES.challenge_window), p.contest()),
         lambda: (p := Play().claimed().wait(RULES.challenge_window - 1), p.contest())),
    Case("a prover contests its own claim", check("bisection.contest.self"),
         lambda: (p := Play().claimed(), p.contest(actor=PROVER)), lambda: (p := Play().claimed(), p.contest())),
    Case("no leaves are contested", check("bisection.contest.range"),
         lambda: (p := Play().claimed(), p.contest(low=3, high=3)),
         lambda: (p := Play().claimed(), p.contest(low=3, high=4))),
    Case("leaves beyond the tree are contested", check("bisection.contest.range"),
         lambda: (p := Play().claimed(), p.contest(high=10)), lambda: (p := Play().claimed(), p.contest(high=9))),
    Case("a claim is finalised twice", check("bisection.finalise.closed"),
         lambda: (final(), finalise()), lambda: (Play().claimed().wait(RULES.challenge_window), finalise())),
    Case("a slashed claim is finalised", check("bisection.finalise.closed"),
         lambda: (slashed_twice_disputed().do(moves.Dismiss(actor=OTHER, dispute=1)).wait(10**7), finalise()),
         lambda: (Play().claimed().wait(10**7), finalise())),
    Case("a claim is finalised one second early", check("bisection.finalise.early"),
         lambda: (Play().claimed().wait(RULES.challenge_window - 1), finalise()),
         lambda: (Play().claimed().wait(RULES.challenge_window), finalise())),
    Case("a disputed claim is finalised", check("bisection.finalise.disputed"),
         lambda: (Play().claimed().contested().wait(RULES.challenge_window), finalise()),
         lambda: (Play().claimed().contested().do(moves.Concede(actor=CHALLENGER, dispute=0))
                  .wait(RULES.challenge_window), finalise())),
    Case("no such claim", check("context.claim.unknown"),
         lambda: (p := Play().claimed(), p.contest(claim=1)), lambda: (p := Play().claimed(), p.contest(claim=0))),
    Case("no such dispute", check("context.dispute.unknown"),
         lambda: (late(0), timeout(1)), lambda: (late(0), timeout(0))),
    Case("a move when the clock has run out", check("game._fits_the_dispute.late"),
         lambda: ready(late(0)), lambda: ready(late(1))),
    Case("a move over a slashed claim", check("game._fits_the_dispute.moot"),
         lambda: (p := slashed_twice_disputed(), p.answer(1)),
         lambda: (p := Play().enlisted().claimed().contested().contested(actor=OTHER), p.answer(1))),
    Case("a dispute over an open claim is dismissed", check("game._fits_the_dispute.open"),
         lambda: (Play().opened(), moves.Dismiss(actor=OTHER, dispute=0)),
         lambda: (slashed_twice_disputed(), moves.Dismiss(actor=OTHER, dispute=1))),
    Case("a timeout while a referee thinks", check("game._fits_the_dispute.phase"),
         lambda: (Play().ruling().wait(10**7), timeout()), lambda: (at(Phase.LEAF).wait(10**7), timeout())),
    Case("a move in a settled dispute", check("game._fits_the_dispute.settled"),
         lambda: (Play().opened().do(moves.Concede(actor=CHALLENGER, dispute=0)).wait(10**7), timeout()),
         lambda: (Play().opened().wait(10**7), timeout())),
    Case("a turn that is over", check("game._fits_the_dispute.turn"),
         lambda: changed(p := at(Phase.CHOOSE), turn=p.dispute.turn - 1), lambda: ready(at(Phase.CHOOSE))),
    Case("the other party's move", check("game._is_made_by.actor"),
         lambda: changed(at(Phase.PARTITION), actor=CHALLENGER), lambda: ready(at(Phase.PARTITION))),
    Case("a pause by somebody", check("game._is_made_by.actor"),
         lambda: (Play(), moves.Pause(actor=OTHER)), lambda: (Play(), moves.Pause(actor=GUARDIAN))),
    Case("a bond that is too small", check("game._pays_exactly.value"),
         lambda: (p := Play(), p.post(value=RULES.prover_bond - 1)), lambda: (p := Play(), p.post())),
    Case("an appeal that pays too much", check("game._pays_exactly.value"),
         lambda: (p := appealable(), p.appeal(PROVER, value=p.appeal(PROVER).value + 1)),
         lambda: (p := appealable(), p.appeal(PROVER))),
    Case("a move during a pause", check("game.apply.paused"),
         lambda: ready(paused()), lambda: ready(paused().do(moves.Resume(actor=GUARDIAN)))),
    Case("money that rests", check("context.withdraw.nothing"),
         lambda: owed(RULES.withdrawal_delay - 1), lambda: owed(RULES.withdrawal_delay)),
    Case("a pause too soon after the last", check("context.pause.rest"),
         lambda: repaused(RULES.pause_rest - 1), lambda: repaused(RULES.pause_rest)),
    Case("a resumption of what goes on", check("context.resume.running"),
         lambda: (Play().claimed(), moves.Resume(actor=GUARDIAN)), lambda: (paused(), moves.Resume(actor=GUARDIAN))),
    Case("a committee in the referee's window", check("game.convene.early"),
         lambda: wait_then(Play().ruling(), RULES.referee_window - 1, convene()),
         lambda: wait_then(Play().ruling(), RULES.referee_window, convene())),
    Case("an element of a record", check("game.pinpoint.level"),
         lambda: named_at_a_record(2), lambda: named_at_a_record(1)),
    Case("evidence about a record", check("game.prove.level"),
         lambda: proof_at_a_record(2), lambda: proof_at_a_record(1)),
    Case("an appeal by the party that won", check("voting._lost_by.actor"),
         lambda: (p := appealable(), p.appeal(CHALLENGER)), lambda: (p := appealable(), p.appeal(PROVER))),
    Case("a vote by a member that was not drawn", check("voting._seat.actor"),
         lambda: outsider(is_drawn=False), lambda: outsider(is_drawn=True)),
    Case("an appeal when the time for it is over", check("voting.appeal.late"),
         lambda: (p := appealable().wait(RULES.appeal_window), p.appeal(PROVER)),
         lambda: (p := appealable().wait(RULES.appeal_window - 1), p.appeal(PROVER))),
    Case("an appeal to more members than there are", check("voting.appeal.pool"),
         lambda: (p := with_pool(6), p.appeal(PROVER)), lambda: (p := with_pool(7), p.appeal(PROVER))),
    Case("a vote is disclosed twice", check("voting.disclose.again"),
         lambda: one_disclosed(again=True), lambda: one_disclosed(again=False)),
    Case("another vote than was committed to", check("voting.disclose.commitment"),
         lambda: disclosure(revealing(), 0, Fault.CHALLENGER), lambda: disclosure(revealing(), 0)),
    Case("a vote is disclosed while others can commit", check("voting.disclose.early"),
         lambda: disclosure(one_voted(again=True)[0], RULES.vote_window - 1),
         lambda: disclosure(one_voted(again=True)[0], RULES.vote_window)),
    Case("a vote is disclosed when the time for it is over", check("voting.disclose.late"),
         lambda: disclosure(revealing(), RULES.reveal_window),
         lambda: disclosure(revealing(), RULES.reveal_window - 1)),
    Case("a stranger enlists", check("voting.enlist.actor"),
         lambda: (Play(), moves.Enlist(actor=OTHER, value=RULES.stake)),
         lambda: (Play(), moves.Enlist(actor=MEMBERS[0], value=RULES.stake))),
    Case("a member enlists twice", check("voting.enlist.enlisted"),
         lambda: (Play().enlisted(MEMBERS[:1]), moves.Enlist(actor=MEMBERS[0], value=RULES.stake)),
         lambda: (Play().enlisted(MEMBERS[:1]), moves.Enlist(actor=MEMBERS[1], value=RULES.stake))),
    Case("somebody without a stake retires", check("voting.retire.actor"),
         lambda: retiring(Play().enlisted(MEMBERS[:1]), MEMBERS[1]),
         lambda: retiring(Play().enlisted(MEMBERS[:1]), MEMBERS[0])),
    Case("a member that votes retires", check("voting.retire.serving"),
         lambda: retiring(p := Play().committing(), p.sitting[0]),
         lambda: retiring(p := Play().committing(), next(m for m in MEMBERS if m not in p.sitting))),
    Case("a member that can still be found out retires", check("voting.retire.early"),
         lambda: served(RULES.holding - 1), lambda: served(RULES.holding)),
    Case("a finding takes effect one second early", check("voting.settle.early"),
         lambda: wait_then(appealable(), RULES.appeal_window - 1, settle()),
         lambda: wait_then(appealable(), RULES.appeal_window, settle())),
    Case("votes are counted while some can come", check("voting.tally.early"),
         lambda: wait_then(revealing(), RULES.reveal_window - 1, tally()),
         lambda: wait_then(revealing(), RULES.reveal_window, tally())),
    Case("a dispute is unsealed twice", check("voting.unseal.again"),
         lambda: (planted().do(unseal()), unseal()), lambda: (planted(), unseal())),
    Case("another answer than was sealed", check("voting.unseal.seal"),
         lambda: (planted(), unseal(Fault.CHALLENGER)), lambda: (planted(), unseal())),
    Case("a member votes twice", check("voting.vote.again"),
         lambda: one_voted(again=True), lambda: one_voted(again=False)),
    Case("a vote when the time for it is over", check("voting.vote.late"),
         lambda: member_vote(Play().committing(), 0), lambda: member_vote(Play().committing(), -1)),
]
# fmt: on

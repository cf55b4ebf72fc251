"""Claims under contest, and the bisection: N-way cuts from a range of leaves to one, under clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tallystick.core.digests import Hash, check_inclusion
from tallystick.core.errors import ProofError, RuleError
from tallystick.disputes.game.context import Context, allow, credit, settle, time_left
from tallystick.disputes.game.moves import (
    BisectionMove,
    Choose,
    Concede,
    Contest,
    Descend,
    Finalise,
    Partition,
    Post,
    Protest,
    Reveal,
    Timeout,
)
from tallystick.disputes.game.state import Clocks, Dispute, Phase, PostedClaim, State, Status, child, cut_places
from tallystick.disputes.game.voting import undrawn
from tallystick.verdicts.verdict import Fault

# Claims: posted with a bond, open to contests during a window, final after it.


def post(at: Context, move: Post) -> State:
    """Add a claim, which can be contested for one window."""
    claim = PostedClaim(
        prover=move.actor,
        root=move.root,
        size=move.size,
        levels=move.levels,
        statement=move.statement,
        seal=move.seal,
        deadline=at.time + at.rules.challenge_window,
        bond=move.value,
    )
    return replace(at.state, claims=(*at.state.claims, claim))


def contest(at: Context, move: Contest) -> State:
    """Add a dispute; any number may be open on one claim, each against its own bond."""
    claim = at.claim(move.claim)
    allow(claim.status is Status.OPEN, "closed", "the claim is final or slashed already")
    allow(at.time < claim.deadline, "window", "the challenge window of the claim is over")
    allow(move.actor != claim.prover, "self", "a prover cannot contest its own claim")
    allow(move.low < move.high <= claim.size, "range", "the contested leaves are not a range of the claim's tree")
    dispute = Dispute(
        claim=move.claim,
        challenger=move.actor,
        level=claim.levels,
        root=claim.root,
        size=claim.size,
        low=move.low,
        high=move.high,
        phase=phase_of(move.low, move.high),
        clocks=Clocks(at.rules.clock, at.rules.clock, at.time),
        bond=at.rules.challenger_bond,
        deposit=at.rules.deposit,
    )
    counted = at.change_claim(move.claim, disputes=claim.disputes + 1)
    return replace(counted.state, disputes=(*at.state.disputes, dispute))


def finalise(at: Context, move: Finalise) -> State:
    """Close a claim and return its bond, once the window is over and every dispute is settled."""
    claim = at.claim(move.claim)
    allow(claim.status is Status.OPEN, "closed", "the claim is final or slashed already")
    allow(at.time >= claim.deadline, "early", "the challenge window of the claim is still open")
    allow(claim.disputes == 0, "disputed", "a dispute over the claim is not settled yet")
    closed = at.change_claim(move.claim, status=Status.FINAL, bond=0)
    return credit(closed.state, claim.prover, claim.bond, at.now)


def phase_of(low: int, high: int) -> Phase:
    """The phase for leaves [low, high): several leaves are cut, a single leaf is opened."""
    return Phase.LEAF if high - low == 1 else Phase.PARTITION


# The bisection: N-way cuts from a range of leaves to one leaf, then in the finer tree below it, under chess clocks.


def partition(at: Context, move: Partition) -> State:
    """The prover commits to the leaf at the end of each child."""
    dispute = at.dispute(move.dispute)
    places = cut_places(dispute.low, dispute.high, at.rules.ways)
    allow(len(move.cuts) == len(places), "cuts", f"{len(places)} cuts are needed, and {len(move.cuts)} are given")
    for cut, place in zip(move.cuts, places, strict=True):
        _stands_in_the_tree(dispute, cut.leaf, cut.proof, place)
    leaves = tuple(cut.leaf for cut in move.cuts)
    return _moved(at, move, phase=Phase.CHOOSE, cuts=leaves, data=move.data)


def choose(at: Context, move: Choose) -> State:
    """The challenger names the child in which the fault lies."""
    dispute = at.dispute(move.dispute)
    allow(move.child <= len(dispute.cuts), "child", f"there are {len(dispute.cuts) + 1} children, counted from 0")
    low, high = child(dispute.low, dispute.high, at.rules.ways, move.child)
    return _moved(at, move, phase=phase_of(low, high), low=low, high=high, cuts=())


def protest(at: Context, move: Protest) -> State:
    """Instead of choosing, the challenger asks for a ruling on the files that the prover put at the board."""
    return _to_ruling(at, move, ground=move.ground)


def descend(at: Context, move: Descend) -> State:
    """The prover opens the last record, and names the tree of its operators."""
    dispute = at.dispute(move.dispute)
    allow(dispute.level > 1, "level", "this leaf is an operator, and there is nothing below it")
    _stands_in_the_tree(dispute, move.leaf, move.proof, dispute.low)
    return _moved(
        at,
        move,
        level=dispute.level - 1,
        root=move.root,
        size=move.size,
        low=0,
        high=move.size,
        phase=phase_of(0, move.size),
        leaf=move.leaf,
        data=move.data,
    )


def reveal(at: Context, move: Reveal) -> State:
    """The prover opens the last leaf, and a ruling on it follows."""
    dispute = at.dispute(move.dispute)
    _stands_in_the_tree(dispute, move.leaf, move.proof, dispute.low)
    return _to_ruling(at, move, ground="leaf", leaf=move.leaf, data=move.data)


def concede(at: Context, move: Concede) -> State:
    """A party gives up and loses."""
    dispute = at.dispute(move.dispute)
    fault = Fault.CHALLENGER if move.actor == dispute.challenger else Fault.PROVER
    return settle(at, move.dispute, fault)


def timeout(at: Context, move: Timeout) -> State:
    """The party to move ran out of time and loses. If no nonce came in time, the finding before it stands."""
    dispute = at.dispute(move.dispute)
    if dispute.phase is Phase.DRAWING:
        allow(at.time >= dispute.deadline, "early", "the nonce can still come")
        return settle(at, move.dispute, undrawn(dispute))
    allow(time_left(dispute, at.time) <= 0, "early", "the party to move still has time")
    return settle(at, move.dispute, Fault.CHALLENGER if dispute.phase is Phase.CHOOSE else Fault.PROVER)


def _moved(at: Context, move: BisectionMove, **changes: Any) -> State:
    """The state after a party's move: the turn is counted, and the clocks are set for the next one."""
    dispute = at.dispute(move.dispute)
    return at.change_dispute(
        move.dispute, turn=dispute.turn + 1, clocks=_turned(dispute, at.time, at.rules.extension), **changes
    ).state


def _to_ruling(at: Context, move: BisectionMove, **changes: Any) -> State:
    return _moved(at, move, phase=Phase.RULING, deadline=at.time + at.rules.referee_window, **changes)


def _turned(dispute: Dispute, time: int, extension: int) -> Clocks:
    """The clocks after a move: the mover's time is charged, and then both have at least the extension."""
    left = time_left(dispute, time)
    spent = {"challenger": left} if dispute.phase is Phase.CHOOSE else {"prover": left}
    clocks = replace(dispute.clocks, since=time, **spent)
    return replace(clocks, prover=max(clocks.prover, extension), challenger=max(clocks.challenger, extension))


def _stands_in_the_tree(dispute: Dispute, leaf: str, proof: tuple[str, ...], place: int) -> None:
    hashes = [Hash(bytes.fromhex(each)) for each in proof]
    try:
        check_inclusion(hashes, Hash(bytes.fromhex(leaf)), place, dispute.size, Hash(bytes.fromhex(dispute.root)))
    except ProofError as error:
        raise RuleError("proof", str(error)) from None

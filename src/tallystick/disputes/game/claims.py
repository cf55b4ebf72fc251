"""Claims: posted with a bond, open to contests during a window, final after it."""

from __future__ import annotations

from dataclasses import replace

from tallystick.disputes.game.context import Context, allow
from tallystick.disputes.game.ledger import credit
from tallystick.disputes.game.moves import Contest, Finalise, Post
from tallystick.disputes.game.state import Clocks, Dispute, Phase, PostedClaim, State, Status


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

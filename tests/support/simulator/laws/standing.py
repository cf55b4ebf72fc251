"""What no move changes: other disputes, what a claim says, and what has ended; and who moves in a dispute, when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tallystick.disputes.game import moves as m
from tallystick.disputes.game.state import Dispute, Phase, PostedClaim, State, Status

_OFFICIALS: Final = {"rule": "referee", "draw": "beacon", "unseal": "planter"}


_PHASES: Final[Mapping[Phase, frozenset[str]]] = {
    Phase.PARTITION: frozenset({"partition", "concede", "timeout", "dismiss"}),
    Phase.CHOOSE: frozenset({"choose", "protest", "concede", "timeout", "dismiss"}),
    Phase.LEAF: frozenset({"descend", "reveal", "concede", "timeout", "dismiss"}),
    Phase.RULING: frozenset({"pinpoint", "rule", "prove", "convene", "concede", "dismiss"}),
    Phase.DRAWING: frozenset({"pinpoint", "draw", "timeout", "dismiss"}),
    Phase.COMMITTING: frozenset({"vote", "disclose", "tally", "dismiss"}),
    Phase.REVEALING: frozenset({"disclose", "tally", "dismiss"}),
    Phase.APPEALABLE: frozenset({"appeal", "settle", "dismiss"}),
    Phase.SETTLED: frozenset({"unseal"}),
}


def what_stays(before: State, move: m.Move, after: State) -> Iterator[str]:
    """A move changes its own dispute and claim, and no claim that has ended."""
    for number, (old, new) in enumerate(zip(before.disputes, after.disputes, strict=False)):
        if old is not new and getattr(move, "dispute", None) != number:
            yield f"{move.kind} changed dispute {number}"
    for number, (was, now) in enumerate(zip(before.claims, after.claims, strict=False)):
        if was is now:
            continue
        if was.status is not Status.OPEN and (now.status is not was.status or now.bond):
            yield f"{move.kind} changed claim {number}, which was {was.status}"
        if _identity(was) != _identity(now):
            yield f"{move.kind} changed what claim {number} says"
        if now.disputes < 0 or (now.status is Status.FINAL and now.disputes):
            yield f"claim {number} is {now.status} with {now.disputes} open disputes"
    if len(after.claims) - len(before.claims) != isinstance(move, m.Post):
        yield f"{move.kind} changed how many claims there are"
    if len(after.disputes) - len(before.disputes) != isinstance(move, m.Contest):
        yield f"{move.kind} changed how many disputes there are"


def _identity(claim: PostedClaim) -> tuple[Any, ...]:
    return (
        *(claim.prover, claim.root, claim.size, claim.levels, claim.statement, claim.seal),
        claim.deadline,
    )


def of_dispute(state: State, move: Any, old: Dispute, new: Dispute, time: int) -> Iterator[str]:
    """A move of a dispute is made by who may, in a phase in which it may be."""
    claim = state.claims[old.claim]
    if old.phase is Phase.SETTLED and move.kind != "unseal":
        yield f"{move.kind} in a settled dispute"
    if move.kind not in ("dismiss", "unseal") and claim.status is not Status.OPEN:
        yield f"{move.kind} over a claim that is {claim.status}"
    if move.kind not in _PHASES[old.phase]:
        yield f"{move.kind} at {old.phase}"
    if (new.claim, new.challenger) != (old.claim, old.challenger):
        yield "a dispute changed hands"
    if new.element != old.element and move.kind != "pinpoint":
        yield f"{move.kind} named element {new.element}"
    if not _may(state, move, claim, old):
        yield f"{move.kind} by {move.actor[-4:]}, who may not"
    if not 0 <= new.low < new.high <= new.size or new.deposit < 0:
        yield f"a dispute over [{new.low}, {new.high}) of {new.size} with a deposit of {new.deposit}"


def _may(state: State, move: Any, claim: PostedClaim, dispute: Dispute) -> bool:
    actor, kind = move.actor, move.kind
    if kind in _OFFICIALS:
        official = getattr(state.rules, _OFFICIALS[kind])
        return actor == official or (kind == "draw" and official is None)
    if kind in ("partition", "descend", "reveal"):
        return bool(actor == claim.prover)
    if kind in ("choose", "protest", "pinpoint"):
        return bool(actor == dispute.challenger)
    if kind in ("vote", "disclose"):
        return actor in dispute.rounds[-1].drawn
    return kind not in ("concede", "appeal") or actor in (claim.prover, dispute.challenger)

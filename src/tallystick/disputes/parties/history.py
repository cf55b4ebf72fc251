"""The history of one dispute: every move, with the progress of the dispute after it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tallystick.commitments.encoding import Json
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import (
    Choose,
    Contest,
    Descend,
    Disclose,
    Move,
    Partition,
    Pinpoint,
    Protest,
    Reveal,
    Rule,
)
from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import State
from tallystick.disputes.parties.progress import DisputeProgress, progress_of


@dataclass(frozen=True)
class HistoryEntry:
    """A move, the role of its actor, what it does in a few words, and the progress of the dispute after it."""

    entry: MoveEntry
    role: str
    summary: str
    after: DisputeProgress

    def to_json(self) -> dict[str, Json]:
        """The move as data, and the progress after it."""
        return {
            "after": self.after.to_json(),
            "move": self.entry.move.to_json(),
            "number": self.entry.number,
            "role": self.role,
            "time": self.entry.time,
        }


def dispute_history(rules: Rules, entries: Iterable[MoveEntry], number: int) -> list[HistoryEntry]:
    """The moves of dispute `number`, the contest that opened it first."""
    state, found = State(rules), list[HistoryEntry]()
    for entry in entries:
        before, state = state, apply(state, entry.move, entry.time)
        opens = isinstance(entry.move, Contest) and len(before.disputes) == number
        if opens or getattr(entry.move, "dispute", None) == number:
            role = role_of(state, number, entry.move.actor)
            found.append(HistoryEntry(entry, role, describe_move(entry.move), progress_of(state, number, entry.time)))
    return found


def role_of(state: State, number: int, party: str) -> str:
    """The role of a party in a dispute: `prover`, `challenger`, …, `member` or `anybody`."""
    dispute, rules = state.disputes[number], state.rules
    roles = {"prover": state.claims[dispute.claim].prover, "challenger": dispute.challenger}
    named = {"referee": rules.referee, "beacon": rules.beacon, "planter": rules.planter}
    found = next((role for role, name in (roles | named).items() if name == party), None)
    return found or ("member" if party in rules.members else "anybody")


def describe_move(move: Move) -> str:
    """A move in a few words."""
    if isinstance(move, Partition):
        return f"opens {len(move.cuts)} leaves"
    if isinstance(move, Contest):
        return f"contests {move.low}–{move.high - 1} of claim {move.claim}"
    if isinstance(move, Choose):
        return f"child {move.child} differs"
    if isinstance(move, Descend):
        return f"opens the record: {move.size} operators"
    if isinstance(move, Reveal):
        return "opens the last leaf"
    if isinstance(move, Pinpoint):
        return f"names element {move.element} of result {move.result}"
    if isinstance(move, Protest):
        return OBJECTIONS.get(move.ground, move.ground)
    if isinstance(move, Rule):
        return f"finds {move.fault.value} at fault"
    if isinstance(move, Disclose):
        return f"voted: {move.vote.value} at fault"
    return _DESCRIPTIONS.get(move.kind, move.kind)


OBJECTIONS: Final = {
    "budget": "objects: the errors of all operators add up",
    "structure": "objects: what was opened is not what was claimed",
}
_DESCRIPTIONS = {
    "appeal": "asks a larger committee",
    "concede": "gives up",
    "convene": "calls a committee",
    "dismiss": "the claim is slashed already",
    "draw": "draws the committee",
    "prove": "brings evidence that convicts",
    "settle": "lets the votes take effect",
    "tally": "counts the votes",
    "timeout": "the clock has run out",
    "unseal": "shows that the claim was planted",
    "vote": "commits to a vote",
}

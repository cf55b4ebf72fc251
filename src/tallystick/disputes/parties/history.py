"""The history of one dispute, move by move, and how disputes ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tallystick.core.canonical_json import Json
from tallystick.core.digests import Digest
from tallystick.core.errors import TallyError
from tallystick.core.files import read_document
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Contest, Move, Prove, Reveal, Rule
from tallystick.disputes.game.state import Dispute, Rules, State
from tallystick.disputes.parties.progress import DisputeProgress, progress_of
from tallystick.formats.openings import OpenedOperator
from tallystick.verdicts.opening.files import OPERATOR

# The history of one dispute: every move, with the progress of the dispute after it.


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
    words = WORDS.get(move.kind, move.kind)
    return words if isinstance(words, str) else words(move)


OBJECTIONS: Final = {
    "budget": "objects: the errors of all operators add up",
    "structure": "objects: what was opened is not what was claimed",
}
WORDS: Final[Mapping[str, str | Callable[[Any], str]]] = {
    "appeal": "asks a larger committee",
    "choose": lambda move: f"child {move.child} differs",
    "concede": "gives up",
    "contest": lambda move: f"contests {move.low}–{move.high - 1} of claim {move.claim}",
    "convene": "calls a committee",
    "descend": lambda move: f"opens the record: {move.size} operators",
    "disclose": lambda move: f"voted: {move.vote.value} at fault",
    "dismiss": "the claim is slashed already",
    "draw": "draws the committee",
    "partition": lambda move: f"opens {len(move.cuts)} leaves",
    "pinpoint": lambda move: f"names element {move.element} of result {move.result}",
    "protest": lambda move: OBJECTIONS.get(move.ground, move.ground),
    "prove": "brings evidence that convicts",
    "reveal": "opens the last leaf",
    "rule": lambda move: f"finds {move.fault.value} at fault",
    "settle": "lets the votes take effect",
    "tally": "counts the votes",
    "timeout": "the clock has run out",
    "unseal": "shows that the claim was planted",
    "vote": "commits to a vote",
}
"""What each kind of move does, in a few words."""


# How disputes ended, for people: at which operator, why, and at whose fault.

REASON: Final = "reason.txt"
"""The file of a referee's reason at the board."""
REASON_MAX: Final = 4096
EVIDENCE: Final = {
    "cast": "evidence that everybody can check: it converts a number to another value",
    "edge": "evidence that everybody can check: it reads other bytes than were given to it",
    "product": "evidence that everybody can check: it multiplies two numbers to another value",
}
WHY: Final = {
    "concede": "it gave up",
    "dismiss": "the claim was slashed in another dispute",
    "settle": "a committee voted",
    "timeout": "its clock ran out",
}
ENDS: Final = {
    "prover": "challenger's objection upheld, prover at fault",
    "challenger": "challenger's objection dismissed, challenger at fault",
    "nobody": "undecided, nobody at fault",
}


@dataclass(frozen=True)
class DisputeEnding:
    """Where a dispute has arrived, and why it ended; `operator` is its place and name once a single one is left."""

    record: int | None
    operator: tuple[int, int, str] | None
    why: str = ""

    @property
    def place(self) -> str:
        """Record and operator in words; empty while several are left.

        >>> DisputeEnding(33, (627, 829, "aten._to_copy.default")).place
        'record 33, operator 627 of 829, aten._to_copy.default'
        """
        record = "" if self.record is None else f"record {self.record}"
        if self.operator is None:
            return record
        number, size, name = self.operator
        return ", ".join(filter(None, (record, f"operator {number} of {size}", name)))

    def to_json(self) -> dict[str, Json]:
        """Record, operator by place and name, and the reason."""
        number, _, name = self.operator or (None, None, None)
        return {"operator": name, "operator_index": number, "record": self.record, "why": self.why}


def ending_of(history: Sequence[HistoryEntry], folder_of: Callable[[Digest], Path]) -> DisputeEnding:
    """The place and the reason in which the moves of a dispute end; `folder_of` fetches files of moves.

    A name or a reason that cannot be fetched is left out: the ending counts without it.
    """
    records = [each.after for each in history if each.after.level == "records"]
    record = records[-1].low if records and records[-1].high - records[-1].low == 1 else None
    now, name, why = history[-1].after, "", WHY.get(history[-1].entry.move.kind, "")
    for move in (each.entry.move for each in history):
        if isinstance(move, Prove):
            name, why = move.evidence.record.operator, EVIDENCE[move.evidence.ground]
        elif isinstance(move, Reveal) and now.level == "operators":
            name = _operator(move.data, folder_of) or name
        elif isinstance(move, Rule):
            why = reason_of(move.reason, folder_of)
    is_one = now.level == "operators" and now.high - now.low == 1
    return DisputeEnding(record, (now.low, now.size, name) if is_one else None, why)


def dispute_ending(dispute: Dispute, number: int, ending: DisputeEnding) -> str:
    """Where a dispute ended, and at whose fault, in one sentence."""
    place = f" at {ending.place}" if ending.place else ""
    if dispute.fault is None:
        return f"dispute {number} is open{place}"
    return f"dispute {number} ended{place}: {ENDS[dispute.fault]}"


def _operator(data: Digest, folder_of: Callable[[Digest], Path]) -> str:
    try:
        return OpenedOperator.from_bytes(read_document(folder_of(data) / OPERATOR), OPERATOR).record.operator
    except (TallyError, OSError):
        return ""


def reason_of(name: Digest, folder_of: Callable[[Digest], Path]) -> str:
    """What a referee wrote to its ruling; empty if it cannot be fetched."""
    try:
        return (folder_of(name) / REASON).read_bytes()[:REASON_MAX].decode(errors="replace")
    except (TallyError, OSError):
        return ""

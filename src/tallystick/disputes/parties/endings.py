"""How disputes ended, for people: at which operator, why, and at whose fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.commitments.digests import Digest
from tallystick.commitments.encoding import Json
from tallystick.disputes.game.moves import Prove, Reveal, Rule
from tallystick.disputes.game.state import Dispute
from tallystick.disputes.parties.history import HistoryEntry
from tallystick.disputes.parties.referee import REASON, REASON_MAX
from tallystick.documents.files import read_document
from tallystick.errors import TallyError
from tallystick.judging.opening.files import OPERATOR
from tallystick.transcripts.opening import OpenedOperator

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

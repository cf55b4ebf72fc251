"""A party's statement that another key may answer for it in disputes, and do nothing else, until some second.

A delegate opens what is contested: it partitions, descends and reveals. It cannot post, concede, appeal or withdraw, so
it reaches no money. Wrong answers lose the party's bond, as its own would. A statement holds until its end: nothing
takes it back.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from tallystick.attestation.signatures import check_signature
from tallystick.attestation.signing import SigningKey
from tallystick.commitments.digests import Digest
from tallystick.disputes.game.moves import HashText, Move
from tallystick.documents.document import Count, DigestText, Document
from tallystick.errors import RuleError

DELEGATION_DOMAIN: Final = b"tallystick/delegation/v1\n"
ANSWERS: Final = frozenset({"partition", "descend", "reveal"})
"""The moves that a delegate may make."""
DELEGATION_BYTES_MAX: Final = 1024

Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class Delegation(Document):
    """The statement: at one coordinator, `delegate` answers for `party` until the second `until` of its clock."""

    coordinator: DigestText
    delegate: HashText
    party: HashText
    signature: Signature
    until: Count

    @property
    def body(self) -> bytes:
        """The bytes that the party signs."""
        return delegation_body(self.coordinator, self.delegate, self.until)

    def check(self, coordinator: Digest, delegate: str) -> None:
        """Raise `ProofError` unless the party signed it, `RuleError` if it is for another coordinator or delegate."""
        check_signature(self.party, self.signature, self.body)
        if self.coordinator != coordinator:
            raise RuleError("coordinator", "the delegation was signed for another coordinator")
        if self.delegate != delegate:
            raise RuleError("actor", "the delegation is for another key")

    def check_move(self, move: Move) -> None:
        """Raise `RuleError` unless the move answers for the party."""
        if move.actor != self.party:
            raise RuleError("actor", "the delegation is another party's than the actor of the move")
        if move.kind not in ANSWERS:
            raise RuleError("actor", f"a delegate answers in disputes, and makes no {move.kind}")

    def check_time(self, now: int) -> None:
        """Raise `RuleError` once it has ended."""
        if now >= self.until:
            raise RuleError("actor", f"the delegation ended at second {self.until}")


def sign_delegation(coordinator: Digest, delegate: str, until: int, key: SigningKey) -> Delegation:
    """A delegation by the party with `key`."""
    signature = key.sign(delegation_body(coordinator, delegate, until))
    return Delegation(coordinator=coordinator, delegate=delegate, party=key.public, signature=signature, until=until)


def delegation_body(coordinator: Digest, delegate: str, until: int) -> bytes:
    """Coordinator, delegate and last second, with a line feed between them, in a domain of their own."""
    return DELEGATION_DOMAIN + f"{coordinator}\n{delegate}\n{until}".encode()

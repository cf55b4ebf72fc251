"""The messages between a party and a local coordinator, signed on both sides (`spec/signed-move.md`).

A party signs each move for one coordinator, with a random nonce. The coordinator answers with a signed receipt for the
next entry of a hash chain over all accepted moves.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.attestation.points import PublicKey
from tallystick.attestation.signatures import check_signature
from tallystick.attestation.signing import SigningKey
from tallystick.commitments.digests import Digest, digest
from tallystick.disputes.coordinators.local.delegation import Delegation, Signature
from tallystick.disputes.game.moves import MOVE_BYTES_MAX, HashText, Move
from tallystick.disputes.game.rules import Rules
from tallystick.documents.document import Count, DigestText, Document
from tallystick.errors import MalformedError, RuleError

SIGNED_MOVE_BYTES_MAX: Final = 2 * MOVE_BYTES_MAX + 2048
"""Twice the size of a move, because every quotation mark of it is escaped inside the signed document."""
ACCEPTED_BYTES_MAX: Final = SIGNED_MOVE_BYTES_MAX + 2048
MOVE_DOMAIN: Final = b"tallystick/move/v1\n"
ENTRY_DOMAIN: Final = b"tallystick/entry/v1\n"
PUT_DOMAIN: Final = b"tallystick/put/v1\n"

NonceText = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Charter(Document):
    """The definition of a local coordinator: its rules, its key, the end of its beacon's chain, and 32 random bytes.

    The random bytes distinguish two coordinators with the same rules and key.
    """

    beacon: HashText
    genesis: HashText
    key: PublicKey
    rules: Rules
    version: Literal[1] = 1

    @property
    def identity(self) -> Digest:
        """The digest by which signed moves name this coordinator."""
        return self.digest_as("coordinator")


class SignedMove(Document):
    """One move for one coordinator; `nonce` distinguishes two moves with the same content.

    With a `delegation`, the key is that of a delegate which answers for the actor.
    """

    coordinator: DigestText
    delegation: Delegation | None = None
    key: HashText
    move: Annotated[str, Field(max_length=MOVE_BYTES_MAX)]
    nonce: NonceText
    signature: Signature

    @property
    def body(self) -> bytes:
        """The signed bytes without their domain: coordinator, nonce and move, one line each."""
        return signed_body(self.coordinator, self.nonce, self.move)

    @property
    def identity(self) -> Digest:
        """The digest of this move; a coordinator accepts it once, even if it is sent several times."""
        return digest("move", self.body)

    def check(self) -> None:
        """Raise `ProofError` unless the key signed this."""
        check_signature(self.key, self.signature, MOVE_DOMAIN + self.body)

    def check_actor(self, move: Move) -> None:
        """Raise `RuleError` or `ProofError` unless the key is the actor's, or that of a delegate of the actor."""
        if self.delegation is not None:
            self.delegation.check(self.coordinator, self.key)
            self.delegation.check_move(move)
        elif move.actor != self.key:
            raise RuleError("actor", "the move was signed by another key than its actor's")

    def check_time(self, now: int) -> None:
        """Raise `RuleError` if the delegate could not answer any more at this second."""
        if self.delegation is not None:
            self.delegation.check_time(now)


class ChainEntry(Document):
    """One link of the chain: the accepted move, its number and second, and the entry before it."""

    coordinator: DigestText
    move: DigestText
    number: Count
    previous: DigestText
    time: Count

    @property
    def identity(self) -> Digest:
        """The head of the chain if this entry is the last."""
        return self.digest_as("entry")


class MoveReceipt(Document):
    """The coordinator's signature of an entry: it can deny neither the move nor its place."""

    entry: ChainEntry
    key: HashText
    signature: Signature

    def check(self, charter: Charter) -> None:
        """Raise `ProofError` unless it is one of this coordinator's."""
        check_signature(charter.key, self.signature, ENTRY_DOMAIN + self.entry.to_bytes())


class Accepted(Document):
    """A signed move with its receipt, as everybody can read it."""

    receipt: MoveReceipt
    signed: SignedMove


def sign_move(
    move: Move, coordinator: Digest, key: SigningKey, nonce: str | None = None, delegation: Delegation | None = None
) -> SignedMove:
    """The move, signed for one coordinator; without a `nonce`, with a new random one."""
    text, nonce = move.to_bytes().decode(), nonce or secrets.token_hex(16)
    signature = key.sign(MOVE_DOMAIN + signed_body(coordinator, nonce, text))
    return SignedMove(
        coordinator=coordinator, delegation=delegation, key=key.public, move=text, nonce=nonce, signature=signature
    )


def sign_entry(entry: ChainEntry, key: SigningKey) -> MoveReceipt:
    """The receipt of an accepted move."""
    return MoveReceipt(entry=entry, key=key.public, signature=key.sign(ENTRY_DOMAIN + entry.to_bytes()))


def read_signed_move(data: bytes) -> SignedMove:
    """A signed move from a party's bytes; raises `MalformedError`."""
    if len(data) > SIGNED_MOVE_BYTES_MAX:
        raise MalformedError(f"signed move: {len(data)} bytes, more than the {SIGNED_MOVE_BYTES_MAX} allowed")
    return SignedMove.from_bytes(data, "signed move")


def signed_body(coordinator: Digest, nonce: str, move: str) -> bytes:
    """Coordinator, nonce and canonical move, with a line feed between them; the first two contain no line feed."""
    return f"{coordinator}\n{nonce}\n{move}".encode()


def put_message(coordinator: Digest, name: Digest, size: int) -> bytes:
    """The bytes that a party signs so that the board keeps `size` bytes under their blob digest."""
    return PUT_DOMAIN + f"{coordinator}\n{name}\n{size}".encode()

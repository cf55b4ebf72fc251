"""Messages signed on both sides, delegated keys, and what accepted moves result in: state, balances, beacon."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Final, Literal, Protocol

from pydantic import Field

from tallystick.core.digests import Digest, digest
from tallystick.core.documents import Count, DigestText, Document
from tallystick.core.errors import MalformedError, ProofError, RuleError, UnavailableError
from tallystick.disputes.coordinators.coordinator import MoveEntry, MoveLog
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import MOVE_BYTES_MAX, Draw, HashText, Move, read_move, value_of
from tallystick.disputes.game.state import Rules, State, broken
from tallystick.formats.signing import PublicKey, SigningKey, check_signature

# A party's statement that another key may answer for it in disputes, and do nothing else, until some second.
#
# A delegate opens what is contested: it partitions, descends and reveals. It cannot post, concede, appeal or withdraw,
# so it reaches no money. Wrong answers lose the party's bond, as its own would. A statement holds until its end:
# nothing takes it back.

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


# The messages between a party and a local coordinator, signed on both sides (`spec/signed-move.md`).
#
# A party signs each move for one coordinator, with a random nonce. The coordinator answers with a signed receipt for
# the next entry of a hash chain over all accepted moves.

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


# The local beacon: a hash chain whose end is in the charter, and of which each draw shows one more link.
#
# Each nonce hashes to the one before it, so the coordinator cannot choose any. But it knows all of them beforehand.
# Parties that do not trust it with this name another beacon in their rules. The chain is derived from the coordinator's
# key.

NONCES: Final = 1 << 14
"""The number of draws that one coordinator can make."""


def chain_end(key: SigningKey, genesis: str) -> str:
    """The end of the chain for the charter: the first nonce hashes to it."""
    return _link(key, genesis, NONCES)


def nonce(key: SigningKey, genesis: str, drawn: int) -> str:
    """The nonce after `drawn` earlier ones, computed from the seed; raises `UnavailableError` if none is left."""
    if drawn >= NONCES:
        raise UnavailableError(f"the beacon's chain of {NONCES} nonces is used up; set up a new coordinator")
    return _link(key, genesis, NONCES - 1 - drawn)


def hashed(nonce: str) -> str:
    """The hash of a nonce, which has to be the nonce drawn before it, or the end of the chain."""
    return hashlib.sha256(b"tallystick/nonce/v1\n" + bytes.fromhex(nonce)).hexdigest()


def check_nonce(nonce: str, previous: str) -> None:
    """Raise `RuleError` with code `nonce` unless `nonce` is the link before `previous`."""
    if hashed(nonce) != previous:
        raise RuleError("nonce", "the beacon's nonce is not the next one of its chain")


def _link(key: SigningKey, genesis: str, steps: int) -> str:
    """The seed, hashed `steps` times."""
    link = hashlib.sha256(b"tallystick/beacon/v1\n" + key.secret + bytes.fromhex(genesis)).hexdigest()
    for _ in range(steps):
        link = hashed(link)
    return link


# The result of a local coordinator's accepted moves: state, balances, time and the head of the chain.


@dataclass(frozen=True)
class ChainState:
    """The chain after `count` accepted moves, the last of them at second `time`.

    `spent` is what each party paid by its moves less what it withdrew. `nonce` is the beacon's last nonce, and `drawn`
    the number of its nonces.
    """

    charter: Charter
    state: State
    head: Digest
    nonce: str
    count: int = 0
    time: int = 0
    drawn: int = 0
    spent: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def empty(cls, charter: Charter) -> ChainState:
        """The state before the first move; the chain begins at the coordinator's identity."""
        return cls(charter, State(charter.rules), charter.identity, charter.beacon)

    def entry(self, signed: SignedMove, time: int) -> ChainEntry:
        """The entry of the next accepted move."""
        return ChainEntry(
            coordinator=self.charter.identity,
            move=signed.identity,
            number=self.count,
            previous=self.head,
            time=time,
        )

    def after(self, move: Move, entry: ChainEntry) -> ChainState:
        """The chain with one more move; raises `RuleError` if the rules refuse it or its nonce is not the next one."""
        is_beacons = isinstance(move, Draw) and move.actor == self.charter.key
        if isinstance(move, Draw) and is_beacons:
            check_nonce(move.nonce, self.nonce)
        state = apply(self.state, move, entry.time)
        paid_out = state.paid_out - self.state.paid_out
        spent = {**self.spent, move.actor: self.spent.get(move.actor, 0) + value_of(move) - paid_out}
        return replace(
            self,
            state=state,
            head=entry.identity,
            nonce=move.nonce if isinstance(move, Draw) and is_beacons else self.nonce,
            count=self.count + 1,
            time=entry.time,
            drawn=self.drawn + is_beacons,
            spent=spent,
        )

    def checked(self) -> ChainState:
        """This chain, after a check of the invariants; `AssertionError` for a broken one, a fault of the program."""
        lines = list(broken(self.state))
        if lines:
            raise AssertionError(f"after move {self.count - 1}: {lines[0]}")
        return self

    def read(self, accepted: Accepted) -> tuple[ChainState, Move]:
        """The chain after an entry that somebody else wrote, and its move; raises `ProofError` if a check fails.

        The checks are: the coordinator's signature, number, time and place in the chain, the party's signature, and
        whether the rules allow the move at this second.
        """
        signed, entry = accepted.signed, accepted.receipt.entry
        accepted.receipt.check(self.charter)
        if entry != self.entry(signed, entry.time) or entry.time < self.time:
            raise ProofError(f"entry {self.count}: the chain of the coordinator's entries is broken")
        if signed.coordinator != self.charter.identity:
            raise ProofError(f"entry {self.count}: the move was signed for another coordinator")
        signed.check()
        move = self._read_move(signed)
        try:
            signed.check_actor(move)
            signed.check_time(entry.time)
            return self.after(move, entry), move
        except RuleError as error:
            raise ProofError(f"entry {self.count}: the coordinator accepted what its rules refuse: {error}") from None

    def _read_move(self, signed: SignedMove) -> Move:
        try:
            return read_move(signed.move.encode(), f"entry {self.count}")
        except MalformedError as error:
            raise ProofError(f"{error}; the coordinator accepted it") from None


# One party's connection to a local coordinator and its board, in the same process or over HTTP.


class SignedPlace(MoveLog, Protocol):
    """A local coordinator and its board, in this process or behind HTTP."""

    def make(self, move: Move, key: SigningKey, delegation: Delegation | None = None) -> MoveReceipt:
        """Sign a move and make it."""
        ...

    def put(self, data: bytes, key: SigningKey, delegation: Delegation | None = None) -> Digest:
        """Keep `data` at the board for the party with this key, or for the one that delegated to it."""
        ...

    def get(self, name: Digest) -> bytes:
        """The bytes under a blob digest, checked against it."""
        ...


@dataclass(frozen=True)
class PartyConnection:
    """A coordinator and its board as one party sees them; implements `Coordinator` and `Board`."""

    place: SignedPlace
    key: SigningKey
    delegation: Delegation | None = None

    @property
    def party(self) -> str:
        """The party that moves through this connection."""
        return self.key.public if self.delegation is None else self.delegation.party

    @property
    def rules(self) -> Rules:
        """See `MoveLog`."""
        return self.place.rules

    def now(self) -> int:
        """See `MoveLog`."""
        return self.place.now()

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        """See `MoveLog`."""
        return self.place.entries(start)

    def submit(self, move: Move) -> None:
        """See `SignedPlace.make`."""
        self.place.make(move, self.key, self.delegation)

    def put(self, data: bytes) -> Digest:
        """See `SignedPlace`."""
        return self.place.put(data, self.key, self.delegation)

    def get(self, name: Digest) -> bytes:
        """See `SignedPlace`."""
        return self.place.get(name)

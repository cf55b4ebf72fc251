"""A coordinator in a database: it admits moves one after the other, and gives a signed receipt for each."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import IO, Final, Self

import sqlalchemy as sa

from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, ProofError, RuleError, UnavailableError, UsageError
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.coordinators.local import signed
from tallystick.disputes.coordinators.local.board import (
    ENTRIES,
    GRANTS,
    Allowance,
    BlobStore,
    CoordinatorDatabase,
    Quotas,
    allowance_of,
    blob_digest,
    is_named,
)
from tallystick.disputes.coordinators.local.signed import (
    Accepted,
    ChainEntry,
    ChainState,
    Charter,
    Delegation,
    MoveReceipt,
    PartyConnection,
    SignedMove,
    read_signed_move,
    sign_entry,
    sign_move,
)
from tallystick.disputes.game.moves import Descend, Move, Partition, Post, Reveal, read_move, value_of
from tallystick.disputes.game.state import MONEY_MAX, Rules, State
from tallystick.formats.signing import SigningKey, check_public

# The checks on a move before the rules of the game, and the HTTP status of each refusal.

WRONG: Final = frozenset(
    {"cuts", "child", "range", "value", "proof", "evidence", "commitment", "seal", "level", "data"}
)
"""Codes of moves with wrong content; the other codes mean a wrong time or phase."""
FORBIDDEN: Final = frozenset({"actor", "self", "standing"})


def admit(data: bytes, charter: Charter) -> tuple[SignedMove, Move]:
    """A party's bytes as a signed move for this coordinator.

    Raises:
        MalformedError: too many bytes, or no signed move in canonical form.
        ProofError: the signature is not one of its key.
        RuleError: with code `coordinator`, it was signed for another coordinator; with code `actor`, it was signed by
            another party than its actor or a delegate of the actor.
    """
    signed = read_signed_move(data)
    move = read_move(signed.move.encode())
    signed.check()
    if signed.coordinator != charter.identity:
        raise RuleError("coordinator", "the move was signed for another coordinator")
    signed.check_actor(move)
    return signed, move


def data_of(move: Move) -> Digest | None:
    """The manifest that the board needs, with everything it lists, before the move is accepted; `None` for none."""
    if isinstance(move, Post):
        return move.statement
    return move.data if isinstance(move, Partition | Descend | Reveal) else None


def status_of(code: str) -> int:
    """The HTTP status of a refusal with the code of a rule."""
    if code in FORBIDDEN:
        return 403
    if code == "quota":
        return 413
    return 422 if code in WRONG else 409


# A coordinator in a database: it accepts moves one after the other, and gives a signed receipt for each.

KEY_SUFFIX: Final = ".key"
Clock = Callable[[], int]


def system_clock() -> int:
    """The system's time in whole seconds."""
    return int(time.time())


class LocalCoordinator:
    """A coordinator over one database; any number of processes may serve the same one.

    The state after the accepted moves is kept in memory, and updated from the database before every answer.
    """

    def __init__(
        self, database: CoordinatorDatabase, key: SigningKey, clock: Clock = system_clock, quotas: Quotas | None = None
    ) -> None:
        self._database, self._key, self._clock = database, key, clock
        self.charter = Charter.from_bytes(database.charter(), f"{database.name}: charter")
        if self.charter.key != key.public:
            raise UsageError(f"{database.name}: this is not the key of the coordinator that was set up there")
        self.blobs = BlobStore(database, quotas or Quotas())
        self._chain, self._entries, self._latest = ChainState.empty(self.charter), list[MoveEntry](), 0
        self._lock = threading.RLock()
        self._nonce = lru_cache(1)(partial(signed.nonce, key, self.charter.genesis))
        with self._lock, database.reading() as connection:
            self._catch_up(connection)

    @classmethod
    def create(
        cls, place: str | Path, rules: Rules, key: SigningKey | None = None, clock: Clock = system_clock
    ) -> Self:
        """Set up a coordinator in a new database; if no key is given, a new one is kept in a file beside it."""
        check_rules(rules)
        database = CoordinatorDatabase(place)
        key = key or key_beside(database)
        genesis = secrets.token_hex(32)
        charter = Charter(beacon=signed.chain_end(key, genesis), genesis=genesis, key=key.public, rules=rules)
        database.create(charter.to_bytes())
        return cls(database, key, clock)

    @classmethod
    def open(
        cls,
        place: str | Path,
        key: SigningKey | None = None,
        clock: Clock = system_clock,
        quotas: Quotas | None = None,
    ) -> Self:
        """Open the coordinator in an existing database.

        Raises:
            UnavailableError: there is no such database, it cannot be reached, or it is damaged.
            MalformedError: it is the database of another program.
            UsageError: the key is not this coordinator's.
        """
        database = CoordinatorDatabase(place)
        database.charter()
        return cls(database, key or SigningKey.read(key_path(database)), clock, quotas)

    def close(self) -> None:
        """Close the connections to the database."""
        self._database.close()

    @property
    def identity(self) -> Digest:
        """The digest by which signed moves name this coordinator."""
        return self.charter.identity

    @property
    def rules(self) -> Rules:
        """The rules; they never change."""
        return self.charter.rules

    @property
    def state(self) -> State:
        """The state after all accepted moves."""
        return self.chain().state

    def now(self) -> int:
        """The time in seconds: that of the clock, but never earlier than a time given before."""
        with self._lock:
            self._latest = max(self._latest, self._chain.time, self._clock())
            return self._latest

    def chain(self) -> ChainState:
        """The chain after all moves that any process has accepted."""
        with self._lock, self._database.reading() as connection:
            return self._catch_up(connection)

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        """The accepted moves from number `start` on."""
        with self._lock:
            self.chain()
            return self._entries[start:]

    def accepted(self, start: int, count: int, bytes_max: int) -> list[Accepted]:
        """At most `count` accepted moves from number `start` on; several have at most `bytes_max` bytes together."""
        page, size = list[Accepted](), 0
        with self._database.reading() as connection:
            for accepted in self._read(connection, start, count):
                size += len(accepted.signed.move)
                if page and size > bytes_max:
                    break
                page.append(accepted)
        return page

    def take(self, data: bytes) -> MoveReceipt:
        """Accept the signed move in `data`; a repeated move gets the same receipt again.

        When this returns, the move is on disk. A refused move is not stored.

        Raises:
            MalformedError, ProofError, RuleError: see `admission.admit`; the rules of the game do not allow the move
                now; with code `funds`, the purse is too small; with code `data`, the board lacks the move's data.
            UnavailableError: the database cannot be reached or written; it is unknown whether it has the move.
        """
        signed, move = admit(data, self.charter)
        self._check_data(signed, move)
        with self._lock, self._database.writing() as connection:
            self._catch_up(connection)
            known = _receipt_of(connection, signed)
            if known is not None:
                return known
            entry, after = self._foreseen(connection, signed, move)
            receipt = sign_entry(entry, self._key)
            _append(connection, signed, receipt, after.checked())
        return receipt

    def make(self, move: Move, key: SigningKey, delegation: Delegation | None = None) -> MoveReceipt:
        """Sign a move and take it; raises what `take` raises."""
        return self.take(sign_move(move, self.identity, key, delegation=delegation).to_bytes())

    def put(self, data: bytes, key: SigningKey, delegation: Delegation | None = None) -> Digest:
        """Keep `data` at the board; raises `UsageError` if it is too large, or the quota is used up."""
        name, owner = blob_digest(BytesIO(data)), key.public if delegation is None else delegation.party
        try:
            self.keep(name, len(data), BytesIO(data), owner)
        except RuleError as error:
            raise UsageError(str(error)) from None
        return name

    def get(self, name: Digest) -> bytes:
        """The bytes under a blob digest; raises `UnavailableError` if they are not there."""
        return self.blobs.get(name)

    def connect(self, key: SigningKey, delegation: Delegation | None = None) -> PartyConnection:
        """The coordinator and its board as the party with this key sees them, or the party that delegated to it."""
        return PartyConnection(self, key, delegation)

    board = connect

    def own(self) -> PartyConnection:
        """The coordinator as a party of its own game: it brings nonces, and makes due moves that anybody may make."""
        return PartyConnection(self, self._key)

    def next_nonce(self) -> str:
        """The beacon's next nonce."""
        return self._nonce(self.chain().drawn)

    def grant(self, party: str, amount: int) -> int:
        """Add `amount` to a party's purse, or take it out if negative; returns the money in the purse then.

        Raises `UsageError` for a weak key, with which anybody could sign, if the purse would be below zero, and if the
        sum of grants would be above `MONEY_MAX`.
        """
        if amount > 0:
            _check_party("grant", party)
        with self._lock, self._database.writing() as connection:
            spent = self._catch_up(connection).spent.get(party, 0)
            total = _granted(connection, party) + amount
            if total < spent or total > MONEY_MAX:
                raise UsageError(f"grant {amount}: the purse of {party[:10]}… would hold {total - spent}")
            last = connection.execute(sa.select(sa.func.max(GRANTS.c.number))).scalar_one()
            row = {"number": 0 if last is None else last + 1, "time": self.now(), "party": party, "amount": amount}
            connection.execute(sa.insert(GRANTS).values(**row))
            return total - spent

    def purse(self, party: str) -> int:
        """The money with which a party can pay for moves."""
        with self._lock, self._database.reading() as connection:
            return self._purse(connection, self._catch_up(connection), party)

    def parties(self) -> list[str]:
        """All parties that were ever granted anything or have moved."""
        with self._database.reading() as connection:
            granted = set(connection.execute(sa.select(GRANTS.c.party).distinct()).scalars())
        return sorted({*granted, *self.chain().spent})

    def keep(self, name: Digest, size: int, source: IO[bytes], owner: str) -> None:
        """Keep bytes at the board for a party with a purse or a role; see `BlobStore.keep`."""
        self.blobs.keep(name, size, source, owner, self.allowance(owner))

    def allowance(self, party: str) -> Allowance:
        """The board's allowance for a party; raises `RuleError` with code `standing` for one without purse and role.

        Such a party may make moves, but may not store data.
        """
        with self._lock, self._database.reading() as connection:
            grants = sa.select(GRANTS.c.number).where(GRANTS.c.party == party)
            if not is_named(party, self.rules) and connection.execute(grants).first() is None:
                raise RuleError("standing", "the board keeps data only for parties with a purse or a role")
            chain = self._catch_up(connection)
            return allowance_of(party, chain.state, self._purse(connection, chain, party))

    def _check_data(self, signed: SignedMove, move: Move) -> None:
        """Raise `RuleError` unless a new move is allowed now and the board has its data.

        The check of the data may take seconds. So it comes after all other checks, and holds no lock.
        """
        name = data_of(move)
        if name is None:
            return
        with self._lock, self._database.reading() as connection:
            self._catch_up(connection)
            if _receipt_of(connection, signed) is not None:
                return
            self._foreseen(connection, signed, move)
        self.blobs.check_whole(name)

    def _foreseen(self, connection: sa.Connection, signed: SignedMove, move: Move) -> tuple[ChainEntry, ChainState]:
        """The entry that a move would get now, and the chain after it; raises `RuleError` if the move is refused."""
        entry = self._chain.entry(signed, self.now())
        signed.check_time(entry.time)
        after = self._chain.after(move, entry)
        price, purse = value_of(move), self._purse(connection, self._chain, move.actor)
        if price > purse:
            raise RuleError("funds", f"this move pays {price}, and the purse holds {purse}")
        return entry, after

    def _catch_up(self, connection: sa.Connection) -> ChainState:
        """Apply the moves that other processes have accepted since the last call."""
        for accepted in self._read(connection, self._chain.count, None):
            with self._damage_as_unavailable():
                self._chain, move = self._chain.read(accepted)
            entry = accepted.receipt.entry
            self._entries.append(MoveEntry(entry.number, entry.time, move))
        return self._chain

    def _read(self, connection: sa.Connection, start: int, count: int | None) -> Iterator[Accepted]:
        columns = sa.select(ENTRIES.c.signed, ENTRIES.c.receipt).where(ENTRIES.c.number >= start)
        rows = connection.execute(columns.order_by(ENTRIES.c.number).limit(count))
        for row in rows:
            with self._damage_as_unavailable():
                receipt = MoveReceipt.from_bytes(bytes(row.receipt), "receipt")
                signed = SignedMove.from_bytes(bytes(row.signed), "signed move")
            yield Accepted(receipt=receipt, signed=signed)

    @contextmanager
    def _damage_as_unavailable(self) -> Iterator[None]:
        try:
            yield
        except (ProofError, MalformedError) as error:
            raise UnavailableError(f"{self._database.name}: damaged: {error}") from None

    def _purse(self, connection: sa.Connection, chain: ChainState, party: str) -> int:
        return _granted(connection, party) - chain.spent.get(party, 0)


def check_rules(rules: Rules) -> None:
    """Raise `UsageError` unless every named party has a sound Ed25519 key, and a beacon draws the members, if any.

    Without a beacon, a contract draws by the hash of a block; here, the party that asks for the draw would choose.
    """
    named = {"treasury": rules.treasury, "referee": rules.referee, "beacon": rules.beacon, "planter": rules.planter}
    named |= {"guardian": rules.guardian} | {f"members.{i}": member for i, member in enumerate(rules.members)}
    for name, party in named.items():
        if party is not None:
            _check_party(f"rules: {name}", party)
    if rules.members and rules.beacon is None:
        raise UsageError("rules: beacon: members are drawn by a nonce, and the rules name nobody who brings it")


def _check_party(what: str, party: str) -> None:
    if party.startswith("0x"):
        raise UsageError(f"{what}: a local coordinator knows parties by their Ed25519 keys")
    try:
        check_public(party)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None


def key_path(database: CoordinatorDatabase) -> Path:
    """The file of a key that `create` made; raises `UsageError` for a database server, which has no folder."""
    if not database.is_file:
        raise UsageError(f"{database.name}: give the coordinator's key; only that of a file is kept beside it")
    return database.path.with_name(database.path.name + KEY_SUFFIX)


def key_beside(database: CoordinatorDatabase) -> SigningKey:
    """The key beside a database that does not exist yet: one that an interrupted call left there, or a new one."""
    path = key_path(database)
    if path.exists():
        return SigningKey.read(path)
    key = SigningKey.generate()
    key.write(path)
    return key


def _granted(connection: sa.Connection, party: str) -> int:
    """The sum of the operator's grants to a party, less what was paid out to it in real money."""
    total = sa.select(sa.func.coalesce(sa.func.sum(GRANTS.c.amount), 0)).where(GRANTS.c.party == party)
    return int(connection.execute(total).scalar_one())


def _receipt_of(connection: sa.Connection, signed: SignedMove) -> MoveReceipt | None:
    chosen = sa.select(ENTRIES.c.receipt).where(ENTRIES.c.move == signed.identity)
    receipt = connection.execute(chosen).scalar_one_or_none()
    return None if receipt is None else MoveReceipt.from_bytes(bytes(receipt), "receipt")


def _append(connection: sa.Connection, signed: SignedMove, receipt: MoveReceipt, after: ChainState) -> None:
    """Write the entry under its number, which is unique in the table: of two servers only one succeeds."""
    assert receipt.entry.identity == after.head
    values = {"number": receipt.entry.number, "move": signed.identity}
    connection.execute(sa.insert(ENTRIES).values(signed=signed.to_bytes(), receipt=receipt.to_bytes(), **values))

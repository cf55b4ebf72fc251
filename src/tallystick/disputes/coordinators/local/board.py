"""The tables of a local coordinator, and its board: data under digests, with a quota for each party."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import IO, Final

import sqlalchemy as sa

from tallystick.core.digests import Digest, digest_from
from tallystick.core.errors import MalformedError, RuleError, UnavailableError, UsageError
from tallystick.core.sql import SqlEngine
from tallystick.disputes.coordinators.coordinator import BLOB_BYTES_MAX, whole_manifests
from tallystick.disputes.game.state import Rules, State, Status

# The tables of a local coordinator, on SQLite (one file) or PostgreSQL, and transactions over them.
#
# There is one writer at a time: a writing transaction holds a lock from its first statement to its last, also against
# other servers on the same database.

FORMAT: Final = 1
METADATA: Final = sa.MetaData()
CHARTER: Final = sa.Table(
    "charter",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
)
ENTRIES: Final = sa.Table(
    "entries",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("move", sa.String(71), nullable=False, unique=True),
    sa.Column("signed", sa.LargeBinary, nullable=False),
    sa.Column("receipt", sa.LargeBinary, nullable=False),
)
GRANTS: Final = sa.Table(
    "grants",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("party", sa.String(64), nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
)
BLOBS: Final = sa.Table(
    "blobs",
    METADATA,
    sa.Column("name", sa.String(71), primary_key=True),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
)
CHUNKS: Final = sa.Table(
    "chunks",
    METADATA,
    sa.Column("name", sa.String(71), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


class CoordinatorDatabase(SqlEngine):
    """The tables of one coordinator."""

    def __init__(self, place: str | Path) -> None:
        super().__init__(place, "a coordinator")

    def create(self, charter: bytes) -> None:
        """Make the tables and write the charter, all or nothing; raises `UsageError` if there are tables already."""
        with self.writing() as connection:
            if sa.inspect(connection).get_table_names():
                raise UsageError(f"{self.name}: there is a database already")
            METADATA.create_all(connection)
            connection.execute(sa.insert(CHARTER).values(id=1, format=FORMAT, document=charter))

    def charter(self) -> bytes:
        """The charter's bytes; raises `UnavailableError` without a database, `MalformedError` for another program's."""
        self.require_file("`tally coordinator init` makes one")
        with self.reading() as connection:
            if not sa.inspect(connection).has_table(CHARTER.name):
                raise MalformedError(f"{self.name}: no database of a coordinator")
            row = connection.execute(sa.select(CHARTER.c.format, CHARTER.c.document)).one_or_none()
        if row is None or row.format != FORMAT:
            raise MalformedError(f"{self.name}: no coordinator's database of format {FORMAT}")
        return bytes(row.document)


# How full the board may be for a party to put more, which depends on what the party has at stake.

IDLE: Final = Fraction(1, 2)
"""For parties that have no claim and cannot pay for one: any number of them leaves half of the board free."""
CLAIMING: Final = Fraction(3, 4)
"""For provers of open claims, and for parties whose purse holds the bond of a claim; that money is not lost."""
ANSWERING: Final = Fraction(1)
"""For provers in open disputes, whose clock runs, and for parties that the rules name."""


@dataclass(frozen=True)
class Allowance:
    """The share up to which the board may be full for a party, and the number of all disputes over its claims."""

    share: Fraction = IDLE
    disputes: int = 0


def allowance_of(party: str, state: State, purse: int) -> Allowance:
    """The allowance of a party, by its role, claims and disputes, and by the money in its purse."""
    claims = {number: claim for number, claim in enumerate(state.claims) if claim.prover == party}
    disputes = sum(dispute.claim in claims for dispute in state.disputes)
    if is_named(party, state.rules) or any(claim.disputes for claim in claims.values()):
        return Allowance(ANSWERING, disputes)
    is_claiming = purse >= state.rules.prover_bond or any(each.status is Status.OPEN for each in claims.values())
    return Allowance(CLAIMING if is_claiming else IDLE, disputes)


def is_named(party: str, rules: Rules) -> bool:
    """Whether the rules name a party in any role."""
    return party in (*rules.members, rules.referee, rules.beacon, rules.planter, rules.guardian, rules.treasury)


# The board of a local coordinator: data under blob digests, in pieces, with a quota for each party.

CHUNK_BYTES: Final = 1 << 20
NAMES_AT_ONCE: Final = 500
BLOB_DOMAIN: Final = b"tallystick/blob/v1\n"


@dataclass(frozen=True)
class Quotas:
    """How many bytes the board keeps: per blob, per party, additionally per dispute over its claims, and in all.

    Data is never deleted, so each dispute adds to its prover's quota permanently. So a prover can answer any number of
    disputes. A party can fill the board only up to the share of its `Allowance`: half without the bond of a claim,
    three quarters with it. The rest is for provers in open disputes and for parties that the rules name.
    """

    blob: int = BLOB_BYTES_MAX
    party: int = 4 << 30
    dispute: int = 4 << 30
    all: int = 64 << 30

    def of(self, standing: Allowance) -> int:
        """The number of bytes that the board keeps for one party."""
        return self.party + self.dispute * standing.disputes

    def room(self, standing: Allowance) -> int:
        """The number of bytes in all up to which the board accepts data of this party."""
        return int(self.all * standing.share)


class BlobStore:
    """The blobs in one database."""

    def __init__(self, database: CoordinatorDatabase, quotas: Quotas) -> None:
        self._database, self.quotas = database, quotas
        self._check_manifest = whole_manifests(self)

    def keep(self, name: Digest, size: int, source: IO[bytes], owner: str, standing: Allowance) -> None:
        """Keep the `size` bytes of `source`, whose digest is `name`, for `owner`, unless they are there already.

        Raises:
            UsageError: they are too many for one blob.
            RuleError: with code `quota`, they are too many for this party or for the board.
        """
        if size > self.quotas.blob:
            raise UsageError(f"a blob of {size} bytes: the board takes {self.quotas.blob} at most")
        with self._database.writing() as connection:
            if _size(connection, name) is not None:
                return
            own, room = self.quotas.of(standing), self.quotas.room(standing)
            if _held(connection, owner) + size > own:
                raise RuleError("quota", f"the board keeps {own} bytes at most for this party")
            if _held(connection, None) + size > room:
                raise RuleError("quota", f"the board is full: {room} bytes at most for a party with no more at stake")
            connection.execute(sa.insert(BLOBS).values(name=name, size=size, owner=owner))
            for number, piece in enumerate(iter(lambda: source.read(CHUNK_BYTES), b"")):
                connection.execute(sa.insert(CHUNKS).values(name=name, number=number, data=piece))

    def size(self, name: Digest) -> int | None:
        """The number of bytes under a digest; `None` if there are none."""
        with self._database.reading() as connection:
            return _size(connection, name)

    def pieces(self, name: Digest) -> Iterator[bytes]:
        """The bytes under a digest in pieces, each in its own transaction; nothing is checked."""
        number = 0
        while True:
            with self._database.reading() as connection:
                chosen = (CHUNKS.c.name == name) & (CHUNKS.c.number == number)
                piece = connection.execute(sa.select(CHUNKS.c.data).where(chosen)).scalar_one_or_none()
            if piece is None:
                return
            yield bytes(piece)
            number += 1

    def get(self, name: Digest) -> bytes:
        """The bytes under a digest, checked; raises `UnavailableError` if they are not there."""
        pieces = sa.select(CHUNKS.c.data).where(CHUNKS.c.name == name).order_by(CHUNKS.c.number)
        with self._database.reading() as connection:
            if _size(connection, name) is None:
                raise UnavailableError(f"{name}: not at the board")
            data = b"".join(map(bytes, connection.execute(pieces).scalars()))
        if blob_digest(BytesIO(data)) != name:
            raise UnavailableError(f"{name}: damaged at the board, which holds other bytes under this digest")
        return data

    def missing(self, names: Iterable[Digest]) -> list[Digest]:
        """Those digests that the board does not have, sorted."""
        wanted, kept = sorted(set(names)), set[str]()
        with self._database.reading() as connection:
            for first in range(0, len(wanted), NAMES_AT_ONCE):
                chosen = BLOBS.c.name.in_(wanted[first : first + NAMES_AT_ONCE])
                kept.update(connection.execute(sa.select(BLOBS.c.name).where(chosen)).scalars())
        return [name for name in wanted if name not in kept]

    def check_whole(self, name: Digest) -> None:
        """Raise `RuleError` with code `data` unless the board has a manifest under `name` and every file it lists.

        This takes seconds for a large manifest, so the caller must not hold a lock.
        """
        try:
            self._check_manifest(name)
        except UnavailableError as error:
            raise RuleError("data", str(error)) from None
        except MalformedError as error:
            raise RuleError("data", f"what lies under {name} is no manifest: {error}") from None

    def held_for(self, owner: str) -> int:
        """The number of bytes that are kept for a party."""
        with self._database.reading() as connection:
            return _held(connection, owner)


def blob_digest(source: IO[bytes]) -> Digest:
    """The blob digest of a file from its current position on, read in pieces."""
    hasher = hashlib.sha256(BLOB_DOMAIN)
    for piece in iter(lambda: source.read(CHUNK_BYTES), b""):
        hasher.update(piece)
    return digest_from(hasher.digest())


def _size(connection: sa.Connection, name: Digest) -> int | None:
    size = connection.execute(sa.select(BLOBS.c.size).where(BLOBS.c.name == name)).scalar_one_or_none()
    return None if size is None else int(size)


def _held(connection: sa.Connection, owner: str | None) -> int:
    total = sa.select(sa.func.coalesce(sa.func.sum(BLOBS.c.size), 0))
    total_bytes = connection.execute(total if owner is None else total.where(BLOBS.c.owner == owner)).scalar_one()
    return int(total_bytes)

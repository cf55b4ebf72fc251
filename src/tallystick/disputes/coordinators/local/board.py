"""The board of a local coordinator: data under blob digests, in pieces, with a quota for each party."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Final

import sqlalchemy as sa

from tallystick.commitments.digests import Digest, digest_from
from tallystick.disputes.coordinators.local.allowance import Allowance
from tallystick.disputes.coordinators.local.database import BLOBS, CHUNKS, Database
from tallystick.disputes.coordinators.manifest import BLOB_BYTES_MAX
from tallystick.disputes.coordinators.whole import WholeManifests
from tallystick.errors import MalformedError, RuleError, UnavailableError, UsageError

CHUNK_BYTES: Final = 1 << 20
NAMES_AT_ONCE: Final = 500
BLOB_DOMAIN: Final = b"tallystick/blob/v1\n"


@dataclass(frozen=True)
class Quotas:
    """How many bytes the board keeps: in one blob, for one party, more for each dispute over its claims, and in all.

    Data is never deleted, so a dispute adds to its prover's quota for good: however many are opened over one party's
    claims, all can be answered. Of all, a party fills the share of its `Allowance` only: a half without the bond of a
    claim, three quarters with it, and the rest is for provers in open disputes and parties that the rules name.
    """

    blob: int = BLOB_BYTES_MAX
    party: int = 4 << 30
    dispute: int = 4 << 30
    all: int = 64 << 30

    def of(self, standing: Allowance) -> int:
        """What the board keeps for one party."""
        return self.party + self.dispute * standing.disputes

    def room(self, standing: Allowance) -> int:
        """How much the board may hold in all once it has taken something of this party."""
        return int(self.all * standing.share)


class BlobStore:
    """The blobs in one database."""

    def __init__(self, database: Database, quotas: Quotas) -> None:
        self._database, self.quotas = database, quotas
        self._whole = WholeManifests(self)

    def keep(self, name: Digest, size: int, source: IO[bytes], owner: str, standing: Allowance) -> None:
        """Keep the `size` bytes of `source`, which hash to `name`, for `owner`; nothing if they are there already.

        Raises:
            UsageError: they are too many for one blob.
            RuleError: with code `quota`, too many for this party or for the board.
        """
        if size > self.quotas.blob:
            raise UsageError(f"a blob of {size} bytes: the board takes {self.quotas.blob} at most")
        with self._database.writing() as connection:
            if _size(connection, name) is not None:
                return
            self._check_quota(connection, size, owner, standing)
            connection.execute(sa.insert(BLOBS).values(name=name, size=size, owner=owner))
            for number, piece in enumerate(iter(lambda: source.read(CHUNK_BYTES), b"")):
                connection.execute(sa.insert(CHUNKS).values(name=name, number=number, data=piece))

    def size(self, name: Digest) -> int | None:
        """How many bytes lie under a digest, `None` where nothing does."""
        with self._database.reading() as connection:
            return _size(connection, name)

    def pieces(self, name: Digest) -> Iterator[bytes]:
        """The bytes under a digest, a piece at a time, each read when it is wanted; nothing is checked."""
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
        """The bytes under a digest, checked; raises `UnavailableError` where they are not there."""
        with self._database.reading() as connection:
            return _get(connection, name)

    def missing(self, names: Iterable[Digest]) -> list[Digest]:
        """Those that do not lie at the board."""
        with self._database.reading() as connection:
            return _missing(connection, names)

    def check_whole(self, name: Digest) -> None:
        """Raise `RuleError` with code `data` unless a manifest lies under `name`, and every file that it lists.

        A large one takes seconds, so that whoever calls this holds no lock.
        """
        try:
            self._whole.check(name)
        except UnavailableError as error:
            raise RuleError("data", str(error)) from None
        except MalformedError as error:
            raise RuleError("data", f"what lies under {name} is no manifest: {error}") from None

    def held_for(self, owner: str) -> int:
        """How many bytes are kept for a party."""
        with self._database.reading() as connection:
            return _held(connection, owner)

    def _check_quota(self, connection: sa.Connection, size: int, owner: str, standing: Allowance) -> None:
        own, room = self.quotas.of(standing), self.quotas.room(standing)
        if _held(connection, owner) + size > own:
            raise RuleError("quota", f"the board keeps {own} bytes at most for this party")
        if _held(connection, None) + size > room:
            raise RuleError("quota", f"the board is full: {room} bytes at most for a party with no more at stake")


def blob_digest(source: IO[bytes]) -> Digest:
    """The blob digest of all that a file still holds, read in pieces."""
    found = hashlib.sha256(BLOB_DOMAIN)
    for piece in iter(lambda: source.read(CHUNK_BYTES), b""):
        found.update(piece)
    return digest_from(found.digest())


def _size(connection: sa.Connection, name: Digest) -> int | None:
    found = connection.execute(sa.select(BLOBS.c.size).where(BLOBS.c.name == name)).scalar_one_or_none()
    return None if found is None else int(found)


def _held(connection: sa.Connection, owner: str | None) -> int:
    total = sa.select(sa.func.coalesce(sa.func.sum(BLOBS.c.size), 0))
    found = connection.execute(total if owner is None else total.where(BLOBS.c.owner == owner)).scalar_one()
    return int(found)


def _get(connection: sa.Connection, name: Digest) -> bytes:
    pieces = sa.select(CHUNKS.c.data).where(CHUNKS.c.name == name).order_by(CHUNKS.c.number)
    if _size(connection, name) is None:
        raise UnavailableError(f"{name}: not at the board")
    data = b"".join(map(bytes, connection.execute(pieces).scalars()))
    if blob_digest(BytesIO(data)) != name:
        raise UnavailableError(f"{name}: damaged at the board, which holds other bytes under this digest")
    return data


def _missing(connection: sa.Connection, names: Iterable[Digest]) -> list[Digest]:
    wanted, held = sorted(set(names)), set[str]()
    for first in range(0, len(wanted), NAMES_AT_ONCE):
        chosen = BLOBS.c.name.in_(wanted[first : first + NAMES_AT_ONCE])
        held.update(connection.execute(sa.select(BLOBS.c.name).where(chosen)).scalars())
    return [name for name in wanted if name not in held]

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
from tallystick.disputes.coordinators.local.database import BLOBS, CHUNKS, CoordinatorDatabase
from tallystick.disputes.coordinators.manifest import BLOB_BYTES_MAX
from tallystick.disputes.coordinators.whole import WholeManifests
from tallystick.errors import MalformedError, RuleError, UnavailableError, UsageError

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
        self._whole = WholeManifests(self)

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
            self._check_quota(connection, size, owner, standing)
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
        with self._database.reading() as connection:
            return _get(connection, name)

    def missing(self, names: Iterable[Digest]) -> list[Digest]:
        """Those digests that the board does not have, sorted."""
        with self._database.reading() as connection:
            return _missing(connection, names)

    def check_whole(self, name: Digest) -> None:
        """Raise `RuleError` with code `data` unless the board has a manifest under `name` and every file it lists.

        This takes seconds for a large manifest, so the caller must not hold a lock.
        """
        try:
            self._whole.check(name)
        except UnavailableError as error:
            raise RuleError("data", str(error)) from None
        except MalformedError as error:
            raise RuleError("data", f"what lies under {name} is no manifest: {error}") from None

    def held_for(self, owner: str) -> int:
        """The number of bytes that are kept for a party."""
        with self._database.reading() as connection:
            return _held(connection, owner)

    def _check_quota(self, connection: sa.Connection, size: int, owner: str, standing: Allowance) -> None:
        own, room = self.quotas.of(standing), self.quotas.room(standing)
        if _held(connection, owner) + size > own:
            raise RuleError("quota", f"the board keeps {own} bytes at most for this party")
        if _held(connection, None) + size > room:
            raise RuleError("quota", f"the board is full: {room} bytes at most for a party with no more at stake")


def blob_digest(source: IO[bytes]) -> Digest:
    """The blob digest of a file from its current position on, read in pieces."""
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

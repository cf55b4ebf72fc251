"""Which blobs of a store no run of the database refers to, and their deletion.

What is deleted is looked up again in the same transaction, which nobody shares who notes a stored file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from tallystick.commitments.digests import Digest
from tallystick.errors import UsageError
from tallystick.indexing.storing import LOCKED
from tallystick.store.blobs import Blobs
from tallystick.store.database.schema import STORED_FILE
from tallystick.store.database.workload_database import WorkloadDatabase


class Fate(StrEnum):
    """What becomes of a blob that nothing refers to: `young` ones stay, since a writer may be about to name them."""

    UNUSED = "unused"
    YOUNG = "young"
    DELETED = "deleted"


@dataclass(frozen=True)
class CollectedBlob:
    """A blob that no run refers to."""

    blob: Digest
    bytes: int
    fate: Fate


def unreferenced(database: WorkloadDatabase, blobs: Blobs, before: float | None) -> list[CollectedBlob]:
    """The blobs that no stored file of any run names; those not written `before` (seconds since 1970) are young.

    `None` takes none to be young. Raises `UsageError` where the database names no blob of a store that holds some: it
    is the store of another database.
    """
    there = list(blobs.digests())
    with database.sql.reading() as connection:
        named = set(connection.execute(sa.select(STORED_FILE.c.blob).distinct()).scalars())
    if there and named.isdisjoint(there):
        raise UsageError(f"{blobs.url}: this database names none of its blobs; it is the store of another one")
    return [_judged(blobs, blob, before) for blob in there if blob not in named]


def collect(database: WorkloadDatabase, blobs: Blobs, before: float | None) -> Iterator[CollectedBlob]:
    """Delete what `unreferenced` finds unused; yields each blob with its fate. Raises as it."""
    for each in unreferenced(database, blobs, before):
        if each.fate is Fate.YOUNG:
            yield each
        elif _is_deleted(database, blobs, each.blob):
            yield CollectedBlob(each.blob, each.bytes, Fate.DELETED)


def _judged(blobs: Blobs, blob: Digest, before: float | None) -> CollectedBlob:
    written = blobs.written(blob)
    is_young = before is not None and (written is None or written >= before)
    return CollectedBlob(blob, blobs.size(blob) or 0, Fate.YOUNG if is_young else Fate.UNUSED)


def _is_deleted(database: WorkloadDatabase, blobs: Blobs, blob: Digest) -> bool:
    with database.writing(LOCKED) as connection:
        asked = sa.select(sa.func.count()).where(STORED_FILE.c.blob == blob)
        if connection.execute(asked).scalar_one():
            return False
        blobs.delete(blob)
    return True

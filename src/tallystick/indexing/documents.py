"""Documents by their digest."""

from __future__ import annotations

import sqlalchemy as sa

from tallystick.commitments.digests import Digest
from tallystick.store.database.bulk import insert_new
from tallystick.store.database.schema import DOCUMENT


def keep_document(connection: sa.Connection, noun: str, digest: Digest, body: bytes) -> None:
    """Keep the canonical bytes of a document, if they are not there already."""
    insert_new(connection, DOCUMENT, [{"digest": digest, "noun": noun, "body": body.decode()}])

"""Compares the stored files that a database names with the blobs of a store and the files that are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from tallystick.commitments.digests import Digest
from tallystick.errors import ProofError
from tallystick.indexing.sources import places_of
from tallystick.indexing.storing import StoredFile, stored_files
from tallystick.store.blobs import Blobs, blob_digest


def blob_findings(connection: sa.Connection, blobs: Blobs, quick: bool = False) -> Iterator[str]:
    """What is wrong with the stored files of all runs; with `quick`, the bytes are not read.

    Raises `MalformedError` at a row that names no digest, and `UnavailableError` where the store cannot be read.
    """
    judged: dict[tuple[Digest, int], str] = {}
    for place in places_of(connection):
        for each in stored_files(connection, place.name).values() if place.kind == "run" else ():
            key = (each.blob, each.bytes)
            if key not in judged:
                judged[key] = _of_blob(blobs, each, quick)
            found = judged[key] or ("" if quick else _of_file(Path(place.place) / each.file, each))
            if found:
                yield f"{place.name}: {each.file}: {found}"


def _of_blob(blobs: Blobs, stored: StoredFile, quick: bool) -> str:
    size = blobs.size(stored.blob)
    if size is None:
        return f"blob {stored.blob} is missing"
    if size != stored.bytes:
        return f"blob {stored.blob} is damaged: {size} bytes, and {stored.bytes} were stored"
    try:
        if not quick:
            blobs.verify(stored.blob, stored.bytes)
    except ProofError:
        return f"blob {stored.blob} is damaged"
    return ""


def _of_file(path: Path, stored: StoredFile) -> str:
    """Whether the file that is still there is the blob; thinning may have left less of it."""
    if not path.is_file() or path.stat().st_size < stored.bytes:
        return ""
    found = blob_digest(path)
    return "" if found == stored.blob else f"is {found}, and blob {stored.blob} was stored"

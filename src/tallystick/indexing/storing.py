"""Copies the anchors and batches of a run into a store of blobs, and notes which file is which blob.

A row is written only while its blob is there and nobody collects: `LOCKED` is held by whoever notes or deletes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from tallystick.commitments.digests import Digest, parse_digest
from tallystick.errors import MalformedError, UnavailableError
from tallystick.indexing.discovery import run_directory
from tallystick.store.anchors import ANCHOR_BYTES_MAX
from tallystick.store.blobs import Blobs, blob_digest
from tallystick.store.database.schema import ANCHOR, RUN, SOURCE, STORED_FILE
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.layout import files_of
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import read_state
from tallystick.transcripts.record import batch_file

LOCKED: Final = "blobs"
FOLDERS: Final = ("anchors/", "batches/")
TRIES: Final = 3


@dataclass(frozen=True)
class StoredFile:
    """A file of a run that is in a store of blobs: its path in the run directory, its blob, and its size."""

    file: str
    blob: Digest
    bytes: int

    @property
    def mark(self) -> int | None:
        """The anchor that it belongs to; `None` for a batch."""
        step = self.file.removeprefix("anchors/step_").partition(".")[0]
        return int(step) if self.file.startswith("anchors/") and step.isdecimal() else None


@dataclass
class StoreReport:
    """The files of a run that are in the store now, and those that are not what their records state."""

    stored: list[StoredFile] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


def stored_files(connection: sa.Connection, run: str) -> dict[str, StoredFile]:
    """The files of a run that were stored, by their paths; raises `MalformedError` at a row that was changed."""
    asked = sa.select(STORED_FILE).join(SOURCE).where(SOURCE.c.kind == "run", SOURCE.c.name == run)
    rows = connection.execute(asked.order_by(STORED_FILE.c.file))
    return {row.file: StoredFile(row.file, parse_digest(row.blob, f"{run}: {row.file}"), row.bytes) for row in rows}


def store_files(database: WorkloadDatabase, run: str, blobs: Blobs, again: bool = False) -> StoreReport:
    """Copy the anchors and batches of a run that are there; what is stored already is left, or with `again` read.

    A file that differs from what was stored of it takes its place only where it is what its record states: thinning
    leaves less of a file, and a damaged one must not replace a whole one.

    Raises `UnavailableError` where there is no such run, or the store cannot be written.
    """
    directory, report = run_directory(database, run), StoreReport()
    with database.sql.reading() as connection:
        known = stored_files(connection, run)
    for file in files_of(directory.path):
        if file.startswith(FOLDERS):
            _store(database, run, directory, blobs, again, known.get(file), file, report)
    return report


def _store(
    database: WorkloadDatabase,
    run: str,
    directory: RunDirectory,
    blobs: Blobs,
    again: bool,
    known: StoredFile | None,
    file: str,
    report: StoreReport,
) -> None:
    path = directory.path / file
    found = StoredFile(file, blob_digest(path), path.stat().st_size)
    if known is not None and known.blob != found.blob and not is_as_recorded(database, run, directory, found):
        if not file.endswith(".part.safetensors"):
            report.differing.append(file)
        return
    for _ in range(TRIES):  # somebody may collect it before it is noted
        blobs.put(path, again)
        if _noted(database, run, blobs, found):
            report.stored.append(found)
            return
    raise UnavailableError(f"{blobs.url}: does not keep {found.blob} ({file})")


def _noted(database: WorkloadDatabase, run: str, blobs: Blobs, found: StoredFile) -> bool:
    with database.writing(LOCKED) as connection:
        if blobs.size(found.blob) != found.bytes:
            return False
        source = connection.execute(
            sa.select(SOURCE.c.id).where(SOURCE.c.kind == "run", SOURCE.c.name == run)
        ).scalar_one()
        of_file = (STORED_FILE.c.source == source, STORED_FILE.c.file == found.file)
        connection.execute(sa.delete(STORED_FILE).where(*of_file))
        values = {"source": source, "file": found.file, "blob": found.blob, "bytes": found.bytes}
        connection.execute(sa.insert(STORED_FILE).values(**values))
    return True


def is_as_recorded(database: WorkloadDatabase, run: str, directory: RunDirectory, found: StoredFile) -> bool:
    """Whether the state in the run directory that a file belongs to has the digest that its record states."""
    try:
        if found.mark is None:
            state = read_state(directory.path / found.file, canonical=True)
            return batch_file(state_digest(state)) == found.file
        with database.sql.reading() as connection:
            joined = ANCHOR.join(RUN, RUN.c.id == ANCHOR.c.run).join(SOURCE, SOURCE.c.id == RUN.c.source)
            asked = sa.select(ANCHOR.c.digest).select_from(joined)
            of_mark = (SOURCE.c.kind == "run", SOURCE.c.name == run, ANCHOR.c.step == found.mark)
            stated = connection.execute(asked.where(*of_mark)).scalar()
        return state_digest(directory.anchors.read(found.mark, ANCHOR_BYTES_MAX)) == stated
    except (MalformedError, UnavailableError):
        return False

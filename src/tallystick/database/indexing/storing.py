"""Anchors and batches of runs in a store of blobs: copied there, fetched from there, collected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from shlex import quote
from typing import Final

import sqlalchemy as sa

from tallystick.core.digests import Digest, parse_digest
from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError
from tallystick.core.safetensors import read_state
from tallystick.core.tensor_digests import state_digest
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.discovery import run_directory
from tallystick.database.indexing.sources import named, of_run, places_of
from tallystick.database.schema import ANCHOR, SOURCE, STEP, STORED_FILE
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.claims import part_file
from tallystick.formats.records import batch_file
from tallystick.formats.store.blobs import Blobs, blob_digest
from tallystick.formats.store.folders import files_of, is_file_name
from tallystick.formats.store.run import ANCHOR_BYTES_MAX, RunDirectory

# Copies the anchors and batches of a run into a store of blobs, and notes which file is which blob.
#
# A row is written only while its blob is there and nobody collects: `LOCKED` is held by whoever notes or deletes.

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
    of_run_files = sa.select(STORED_FILE).join(SOURCE).where(named("run", run))
    rows = connection.execute(of_run_files.order_by(STORED_FILE.c.file))
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
        if not file.startswith(FOLDERS):
            continue
        path = directory.path / file
        stored, before = StoredFile(file, blob_digest(path), path.stat().st_size), known.get(file)
        if before is None or before.blob == stored.blob or is_as_recorded(database, run, directory, stored):
            for _ in range(TRIES):  # somebody may collect it before it is noted
                blobs.put(path, again)
                if _noted(database, run, blobs, stored):
                    report.stored.append(stored)
                    break
            else:
                raise UnavailableError(f"{blobs.url}: does not keep {stored.blob} ({file})")
        elif not file.endswith(".part.safetensors"):
            report.differing.append(file)
    return report


def _noted(database: WorkloadDatabase, run: str, blobs: Blobs, stored: StoredFile) -> bool:
    with database.writing(LOCKED) as connection:
        if blobs.size(stored.blob) != stored.bytes:
            return False
        source = connection.execute(of_run(run, SOURCE.c.id)).scalar_one()
        of_file = (STORED_FILE.c.source == source, STORED_FILE.c.file == stored.file)
        connection.execute(sa.delete(STORED_FILE).where(*of_file))
        values = {"source": source, "file": stored.file, "blob": stored.blob, "bytes": stored.bytes}
        connection.execute(sa.insert(STORED_FILE).values(**values))
    return True


def is_as_recorded(database: WorkloadDatabase, run: str, directory: RunDirectory, stored: StoredFile) -> bool:
    """Whether the state that a file belongs to is what its record states; raises what reading the database raises."""
    with database.sql.reading() as connection:
        stated = connection.execute(of_run(run, ANCHOR.c.digest).where(ANCHOR.c.step == stored.mark)).scalar()
    try:
        if stored.mark is None:
            state = read_state(directory.path / stored.file, canonical=True)
            return batch_file(state_digest(state)) == stored.file
        return state_digest(directory.anchors.read(stored.mark, ANCHOR_BYTES_MAX)) == stated
    except (MalformedError, UnavailableError):
        return False


# Fetches the anchors and batches that a run directory lacks from a store of blobs, each verified.


@dataclass
class RestoreReport:
    """The files that were fetched, and why others could not be: `damaged` are other bytes, `lacking` are missing."""

    fetched: list[StoredFile] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)


def restore_files(
    database: WorkloadDatabase, run: str, blobs: Blobs, steps: tuple[int, int] | None = None
) -> RestoreReport:
    """Fetch what the run directory lacks, or what of it the steps from the first to the last of `steps` need.

    These need their batches and the states from the last one before them to the first one behind them.

    Raises:
        MalformedError: a row of the database names no file of a run.
        UnavailableError: there is no such run, or nothing of it was stored.
    """
    directory, report = run_directory(database, run), RestoreReport()
    with database.sql.reading() as connection:
        stored = stored_files(connection, run)
        named_batches = of_run(run, STEP.c.batch).where(STEP.c.step.between(*(steps or (0, 0))))
        batches = {
            batch_file(batch)
            for batch in connection.execute(named_batches).scalars()
            if batch is not None and batch.startswith("sha256:")
        }
    for file in stored:
        if not (is_file_name(file) and file.startswith(FOLDERS)):
            raise MalformedError(f"{run}: the database names {file[:80]!a}, which is no anchor or batch of a run")
    if not stored:
        raise UnavailableError(f"{run}: nothing of it is stored; `tally db store {quote(str(run))} --blobs URL`")
    if steps is None:
        _fetch_all(directory, blobs, stored.values(), report)
    else:
        _fetch_all(directory, blobs, (each for each in stored.values() if each.file in batches), report)
        _fetch_marks(directory, blobs, stored, steps, report)
    _drop_others(database, run, directory, report)
    with database.sql.reading() as connection:
        place = next(place for place in places_of(connection) if place.key == ("run", run))
    add_place(database, place.place, run, tensors=place.tensors, whole=False)  # what is there now
    return report


def _drop_others(database: WorkloadDatabase, run: str, directory: RunDirectory, report: RestoreReport) -> None:
    """Take back what was fetched of a state or a batch that is not what its record states."""
    there = set(directory.anchors.present(stored.mark for stored in report.fetched if stored.mark is not None))
    # A state may lie in several files, and is compared once.
    units = {stored.file if stored.mark is None else stored.mark: stored for stored in report.fetched}
    wrong = {
        unit
        for unit, stored in units.items()
        if (stored.mark is None or stored.mark in there) and not is_as_recorded(database, run, directory, stored)
    }
    for stored in list(report.fetched):
        if not wrong.isdisjoint({stored.mark, stored.file}):
            (directory.path / stored.file).unlink()
            report.fetched.remove(stored)
            report.damaged[stored.file] = "the database names a blob that is not what its record states"


def _fetch_marks(
    directory: RunDirectory, blobs: Blobs, stored: dict[str, StoredFile], steps: tuple[int, int], report: RestoreReport
) -> None:
    """The states around the steps, and the files of others in which tensors of these stand."""
    first, last = steps
    marks = sorted({each.mark for each in stored.values() if each.mark is not None})
    start = max((mark for mark in marks if mark < first), default=0)
    end = min((mark for mark in marks if mark >= last), default=last)
    wanted = {mark for mark in marks if start <= mark <= end}
    _fetch_all(directory, blobs, (each for each in stored.values() if each.mark in wanted), report)
    there = directory.anchors.present(wanted)
    holders = {holder for mark in there for holder in directory.anchors.elsewhere(mark).values()} - wanted
    _fetch_all(directory, blobs, (each for each in stored.values() if each.mark in holders), report)


def _fetch_all(directory: RunDirectory, blobs: Blobs, files: Iterable[StoredFile], report: RestoreReport) -> None:
    """A list is fetched after the tensors that it does not name: without them it would be no anchor."""
    for stored in sorted(files, key=lambda stored: (stored.file.endswith(".json"), stored.file)):
        path = directory.path / stored.file
        is_part = stored.mark is not None and stored.file == part_file(stored.mark)
        # Thinning leaves less of a part file, which is then fetched whole.
        if path.is_file() and not (is_part and path.stat().st_size != stored.bytes):
            continue
        try:
            blobs.fetch(stored.blob, path, stored.bytes)
            report.fetched.append(stored)
        except ProofError as error:
            report.damaged[stored.file] = str(error)
        except UnavailableError as error:
            report.lacking[stored.file] = str(error)


def problem_of(run: str, report: RestoreReport) -> TallyError | None:
    """The error to end with, where a file could not be fetched."""
    lines = [*report.damaged.items(), *report.lacking.items()]
    if not lines:
        return None
    text = f"{run}: not restored: {'; '.join(f'{file}: {why}' for file, why in lines[:3])}"
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return (ProofError if report.damaged else UnavailableError)(text + more)


# Which blobs of a store no run of the database refers to, and their deletion.
#
# What is deleted is looked up again in the same transaction, which nobody shares who notes a stored file.


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
    unnamed = []
    for blob in (blob for blob in there if blob not in named):
        written = blobs.written(blob)
        is_young = before is not None and (written is None or written >= before)
        unnamed.append(CollectedBlob(blob, blobs.size(blob) or 0, Fate.YOUNG if is_young else Fate.UNUSED))
    return unnamed


def collect(database: WorkloadDatabase, blobs: Blobs, before: float | None) -> Iterator[CollectedBlob]:
    """Delete what `unreferenced` finds unused; yields each blob with its fate. Raises as it."""
    for unnamed in unreferenced(database, blobs, before):
        if unnamed.fate is Fate.YOUNG:
            yield unnamed
            continue
        with database.writing(LOCKED) as connection:  # somebody may have named it since
            count = sa.select(sa.func.count()).where(STORED_FILE.c.blob == unnamed.blob)
            is_named = bool(connection.execute(count).scalar_one())
            if not is_named:
                blobs.delete(unnamed.blob)
        if not is_named:
            yield replace(unnamed, fate=Fate.DELETED)

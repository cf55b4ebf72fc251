"""Fetches the anchors and batches that a run directory lacks from a store of blobs, each verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from shlex import quote

import sqlalchemy as sa

from tallystick.errors import MalformedError, ProofError, TallyError, UnavailableError
from tallystick.indexing.add import add_place
from tallystick.indexing.discovery import run_directory
from tallystick.indexing.sources import places_of
from tallystick.indexing.storing import FOLDERS, StoredFile, is_as_recorded, stored_files
from tallystick.store.blobs import Blobs
from tallystick.store.database.schema import RUN, SOURCE, STEP
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.layout import is_file_name
from tallystick.store.run import RunDirectory
from tallystick.transcripts.anchor_parts import part_file
from tallystick.transcripts.record import batch_file


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
        batches = None if steps is None else set(_batches(connection, run, steps))
    for file in stored:
        if not (is_file_name(file) and file.startswith(FOLDERS)):
            raise MalformedError(f"{run}: the database names {file[:80]!a}, which is no anchor or batch of a run")
    if not stored:
        raise UnavailableError(f"{run}: nothing of it is stored; `tally db store {quote(str(run))} --blobs URL`")
    if steps is None or batches is None:
        _fetch_all(directory, blobs, stored.values(), report)
    else:
        _fetch_all(directory, blobs, (each for each in stored.values() if each.file in batches), report)
        _fetch_marks(directory, blobs, stored, steps, report)
    _drop_others(database, run, directory, report)
    _read_again(database, run)
    return report


def _drop_others(database: WorkloadDatabase, run: str, directory: RunDirectory, report: RestoreReport) -> None:
    """Take back what was fetched of a state or a batch that is not what its record states."""
    there = set(directory.anchors.present(each.mark for each in report.fetched if each.mark is not None))
    wrong = {
        each.mark if each.mark is not None else each.file
        for each in _one_of_each(report.fetched)
        if (each.mark is None or each.mark in there) and not is_as_recorded(database, run, directory, each)
    }
    for each in list(report.fetched):
        if not wrong.isdisjoint({each.mark, each.file}):
            (directory.path / each.file).unlink()
            report.fetched.remove(each)
            report.damaged[each.file] = "the database names a blob that is not what its record states"


def _one_of_each(files: Iterable[StoredFile]) -> Iterable[StoredFile]:
    """One file of every anchor, and every batch."""
    return {each.file if each.mark is None else each.mark: each for each in files}.values()


def _batches(connection: sa.Connection, run: str, steps: tuple[int, int]) -> Iterator[str]:
    joined = STEP.join(RUN, RUN.c.id == STEP.c.run).join(SOURCE, SOURCE.c.id == RUN.c.source)
    asked = sa.select(STEP.c.batch).select_from(joined)
    asked = asked.where(SOURCE.c.kind == "run", SOURCE.c.name == run, STEP.c.step.between(*steps))
    for batch in connection.execute(asked).scalars():
        if batch is not None and batch.startswith("sha256:"):
            yield batch_file(batch)


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
    for each in sorted(files, key=lambda each: (each.file.endswith(".json"), each.file)):
        if _is_lacking(directory, each):
            try:
                blobs.fetch(each.blob, directory.path / each.file, each.bytes)
                report.fetched.append(each)
            except ProofError as error:
                report.damaged[each.file] = str(error)
            except UnavailableError as error:
                report.lacking[each.file] = str(error)


def _is_lacking(directory: RunDirectory, stored: StoredFile) -> bool:
    """Whether the file is not there; thinning leaves less of a part file, which is then fetched whole."""
    path = directory.path / stored.file
    is_part = stored.mark is not None and stored.file == part_file(stored.mark)
    return not path.is_file() or (is_part and path.stat().st_size != stored.bytes)


def _read_again(database: WorkloadDatabase, run: str) -> None:
    """Note what is there now, and compare it with its records."""
    with database.sql.reading() as connection:
        place = next(each for each in places_of(connection) if each.key == ("run", run))
    add_place(database, place.place, run, tensors=place.tensors, whole=False)


def problem_of(run: str, report: RestoreReport) -> TallyError | None:
    """The error to end with, where a file could not be fetched."""
    lines = [*report.damaged.items(), *report.lacking.items()]
    if not lines:
        return None
    text = f"{run}: not restored: {'; '.join(f'{file}: {why}' for file, why in lines[:3])}"
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return (ProofError if report.damaged else UnavailableError)(text + more)

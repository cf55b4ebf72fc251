"""Compares every row of a database with the files that it came from, and these with the roots that are claimed.

The places that the database names are read anew into a database beside it, and the two are compared row by row. So
whatever a reading writes is compared, and the next kind of row is, too.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import sqlalchemy as sa

from tallystick.audits.gathering import read_run
from tallystick.audits.inference import gather_calls
from tallystick.audits.policy import Policy
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.indexing.checking_blobs import blob_findings
from tallystick.indexing.reading_again import read_again, read_rest
from tallystick.indexing.sources import SourcePlace, places_of
from tallystick.judging.findings import Findings
from tallystick.presentation.verdict_text import describe
from tallystick.store.blobs import Blobs
from tallystick.store.database.natural_rows import (
    Key,
    NaturalRows,
    RowDifference,
    derived_tables,
    differences,
    origin_of,
)
from tallystick.store.database.schema import ANCHOR, BINDING, METADATA, ONLY_HERE, RUN, SOURCE, STEP, TENSOR
from tallystick.store.database.workload_database import WorkloadDatabase
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory
from tallystick.store.statement import claims_inference

SHOWN: Final = 100
"""The most findings that are written out; the others are counted."""

OF_BYTES: Final = frozenset({BINDING.name, TENSOR.name})
"""The tables that are read from the bytes of states and batches."""


@dataclass
class CheckReport:
    """What a check found: `findings` are wrong, `unchecked` could not be compared, each with what it is about.

    `only_here` are rows that no file holds, so that there is nothing to compare them with.
    """

    rows: int = 0
    findings: list[str] = field(default_factory=list)
    more: int = 0
    unchecked: list[str] = field(default_factory=list)
    only_here: list[str] = field(default_factory=list)

    def found(self, line: str) -> None:
        """Note a finding."""
        if len(self.findings) < SHOWN:
            self.findings.append(line)
        else:
            self.more += 1


def check(database: WorkloadDatabase, quick: bool = False, blobs: Blobs | None = None) -> CheckReport:
    """Compare all rows with the files; with `quick`, the bytes of states and batches are left out.

    The stored files of all runs are compared with `blobs`, where that is given.
    Raises `UnavailableError` where the database or the store of blobs cannot be read.
    """
    report = CheckReport()
    with (
        TemporaryDirectory(prefix="tally-check-") as folder,
        WorkloadDatabase(Path(folder) / "again.db", writable=True) as again,
        database.sql.reading() as ours,
    ):
        if not database.sql.is_file:
            ours.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        unread: set[Key] = {each.key for each in places_of(ours) if not _is_read(again, ours, each, quick, report)}
        lacking = read_rest(again, ours)
        report.unchecked += [f"graph {root}: {why}" for root, why in lacking.items()]
        unread |= {("graph", root) for root in lacking}
        with again.sql.reading() as theirs:
            compare(report, ours, theirs, unread, quick)
        if blobs is not None:
            _compare_blobs(report, ours, blobs, quick)
        _note_only_here(report, ours)
    return report


def _compare_blobs(report: CheckReport, ours: sa.Connection, blobs: Blobs, quick: bool) -> None:
    for line in blob_findings(ours, blobs, quick):
        report.found(line)
    if quick:
        report.unchecked.append("blobs: their bytes were left out")


def compare(
    report: CheckReport, ours: sa.Connection, theirs: sa.Connection, unread: Set[Key] = frozenset(), quick: bool = False
) -> None:
    """Compare all rows that can be read again; `unread` are the places that could not be read into `theirs`."""
    left, right, partly = NaturalRows(ours), NaturalRows(theirs), _partly_there(theirs)
    for table in derived_tables():
        if quick and table.name in OF_BYTES:
            report.unchecked.append(f"rows of {table.name}: their bytes were left out")
            continue
        report.rows += ours.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
        lacking = unread | partly if table.name in OF_BYTES else unread
        passed = 0
        for each in differences(left, right, table):
            if _is_open(table, each, unread, lacking):
                passed += 1
            else:
                report.found(str(each))
        if passed:
            report.unchecked.append(f"{passed} rows of {table.name}: the files that they came from are not there")


def _is_read(
    again: WorkloadDatabase, ours: sa.Connection, place: SourcePlace, quick: bool, report: CheckReport
) -> bool:
    """Read a place into the second database; what keeps it from being read is in the report."""
    try:
        if unchecked := read_again(again, ours, place, quick=quick):
            report.unchecked.append(f"{place.name}: {unchecked}")
        if place.kind == "run":
            _check_claim(place.name, Path(place.place), report)
    except UnavailableError as error:
        report.unchecked.append(f"{place.name}: {error}")
        return False
    except (MalformedError, ProofError) as error:
        report.found(f"{place.name}: {error}")
        return False
    return True


def _check_claim(name: str, path: Path, report: CheckReport) -> None:
    """Compare the records, the graph and the data of a finished run with the roots that its claim names."""
    if not RunDirectory(path).claim_path.is_file():
        return
    findings = Findings(keeps_going=True)
    if claims_inference(path):
        findings = gather_calls(InferenceDirectory(path), Policy()).findings
    else:
        read_run(RunDirectory(path), Policy(), findings)
    for finding in findings.seen:
        if not finding.agrees:
            report.found(f"{name}: {describe(finding)}")
    report.unchecked += [f"{name}: {why}" for why in findings.undecided]


def _is_open(table: sa.Table, each: RowDifference, unread: Set[Key], lacking: Set[Key]) -> bool:
    """Whether the files that are there cannot say that this row is wrong."""
    origin = origin_of(table, each.key)
    if origin in unread:
        return True
    return each.theirs is None and (origin in lacking or (origin is None and bool(lacking)))


def _partly_there(again: sa.Connection) -> Set[Key]:
    """The runs of which a state or a batch is not there: rows about these cannot be read again."""
    bound = sa.exists().where(BINDING.c.run == STEP.c.run, BINDING.c.step == STEP.c.step, BINDING.c.moment == "during")
    absent = sa.select(ANCHOR.c.run).where(ANCHOR.c.present.is_(False))
    unbound = sa.select(STEP.c.run).where(STEP.c.batch.startswith("sha256:"), ~bound)
    names = sa.select(SOURCE.c.kind, SOURCE.c.name).join(RUN).where(RUN.c.id.in_(absent.union(unbound)))
    return {(kind, name) for kind, name in again.execute(names)}


def _note_only_here(report: CheckReport, ours: sa.Connection) -> None:
    for name in sorted(ONLY_HERE):
        count = ours.execute(sa.select(sa.func.count()).select_from(METADATA.tables[name])).scalar_one()
        if count:
            report.only_here.append(f"{count} rows of {name}")
    if kept := sum(each.is_in_database for each in places_of(ours)):
        reports = "1 report of an audit" if kept == 1 else f"{kept} reports of audits"
        report.only_here.append(f"{reports}, which the database keeps whole")

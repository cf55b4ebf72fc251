"""Reads the places of a database again: to make it anew, or to compare every row and stored file with them."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import sqlalchemy as sa

from tallystick.audits.calls import gather_calls
from tallystick.audits.opening import read_run
from tallystick.audits.policy import Policy
from tallystick.core.canonical_json import encode, parse
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.database.bulk import (
    Key,
    NaturalRows,
    RowDifference,
    derived_tables,
    differences,
    insert_many,
    inserted,
    key_of,
    origin_of,
    values_of,
)
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.audits import REPORT_BYTES_MAX, add_audit
from tallystick.database.indexing.graphs import RELATIONS_OF_FORMS, add_graph, link_graphs
from tallystick.database.indexing.sources import SourcePlace, named, places_of
from tallystick.database.indexing.storing import StoredFile, stored_files
from tallystick.database.schema import (
    ANCHOR,
    AUDIT,
    BINDING,
    GRAPH,
    GRAPH_LINK,
    METADATA,
    ONLY_HERE,
    RUN,
    SOURCE,
    STEP,
    TENSOR,
    target_of,
)
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.store.blobs import Blobs, blob_digest
from tallystick.formats.store.directories import InferenceDirectory, claims_inference
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.verdict import Findings
from tallystick.verdicts.words import describe

# Reads a place that a database names into another database, as it was read there.


def read_again(again: WorkloadDatabase, ours: sa.Connection, place: SourcePlace, *, quick: bool = False) -> str:
    """Read `place`, which the database behind `ours` names; returns what could not be compared with a file, or nothing.

    With `quick`, the bytes of states and batches are left out. Raises what `add_place` raises.
    """
    if place.kind == "audit":
        return _read_audit(again, ours, place)
    add_place(again, place.place, place.name, tensors=place.tensors and not quick)
    with again.writing(place.name) as connection:
        source = sa.select(SOURCE.c.id).where(named(place.kind, place.name))
        of_place = RUN.c.source == source.scalar_subquery()
        connection.execute(sa.update(RUN).where(of_place).values(tensors=place.tensors))
    return ""


def read_rest(again: WorkloadDatabase, ours: sa.Connection) -> dict[str, str]:
    """Read what belongs to no place: graphs that stand in files by themselves, and the forms that people linked.

    Returns the graphs that are not there, and why. A link is a statement of whoever made it: taken as it is.
    """
    lacking = {}
    with again.writing("graphs") as connection:
        have = set(connection.execute(sa.select(GRAPH.c.root)).scalars())
        for root, place in ours.execute(sa.select(GRAPH.c.root, GRAPH.c.place).order_by(GRAPH.c.id)).all():
            if root not in have:
                try:
                    add_graph(connection, Path(place or ""), root)
                except UnavailableError as error:
                    lacking[root] = str(error)
                except MalformedError:
                    continue  # another graph stands there: it has no row in the second database
        numbers = {root: number for number, root in connection.execute(sa.select(GRAPH.c.id, GRAPH.c.root))}
        joined = GRAPH_LINK.join(GRAPH, GRAPH.c.id == GRAPH_LINK.c.graph)
        links = sa.select(GRAPH.c.root, GRAPH_LINK.c.relation, GRAPH_LINK.c.other).select_from(joined)
        for root, relation, other in ours.execute(links).all():
            if root in numbers and relation in RELATIONS_OF_FORMS:
                link_graphs(connection, numbers[root], relation, other)
    return lacking


def _read_audit(again: WorkloadDatabase, ours: sa.Connection, place: SourcePlace) -> str:
    """Read the report that the database keeps whole; its file may hold a later report by now, or be gone."""
    audited = SOURCE.alias()
    joined = AUDIT.join(SOURCE, AUDIT.c.source == SOURCE.c.id).outerjoin(RUN, RUN.c.id == AUDIT.c.run)
    kept = sa.select(AUDIT.c.body, audited.c.place).select_from(joined.outerjoin(audited, audited.c.id == RUN.c.source))
    row = ours.execute(kept.where(named(place.kind, place.name))).one_or_none()
    if row is None:
        raise MalformedError("the database names it, and has no row of it")
    report = parse(row.body.encode(), "report", bytes_max=REPORT_BYTES_MAX)
    if digest("report", encode(report)) != place.name:
        raise MalformedError("the report is another one than the digest that names it")
    if not isinstance(report, dict):
        raise MalformedError("the report is no object of JSON")
    add_audit(again, report, place.place, None if row.place is None else Path(row.place))
    file = Path(place.place)
    if place.is_in_database:
        return ""  # its digest names it, and there is no file to compare it with
    if file.is_file():
        found = parse(file.read_bytes(), "report", bytes_max=REPORT_BYTES_MAX)
        if digest("report", encode(found)) == place.name:
            return ""
    return "its file is not there, or holds another report: its rows follow from the report that the database keeps"


# Makes a database anew from the places that it names, and puts the new rows in the place of the old ones.

PAGE: Final = 10_000


@dataclass
class RebuildReport:
    """The names of the places that were read again, and why others could not be."""

    read: list[str] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)


def rebuild(database: WorkloadDatabase) -> RebuildReport:
    """Read all places again; their rows take the place of the old ones in one transaction, or nothing changes.

    A place that cannot be read stays named, without rows. Rows that no file holds stay.
    Raises `UnavailableError` where the places of the database have changed meanwhile.
    """
    report = RebuildReport()
    # Beside the database, whose disk has room for a second one.
    beside = database.sql.path.parent if database.sql.is_file else None
    with (
        TemporaryDirectory(prefix="tally-rebuild-", dir=beside) as folder,
        WorkloadDatabase(Path(folder) / "again.db", writable=True) as again,
    ):
        with database.sql.reading() as connection:
            places = places_of(connection)
            for place in places:
                try:
                    read_again(again, connection, place)
                    report.read.append(place.name)
                except (MalformedError, UnavailableError) as error:
                    report.lacking[place.name] = str(error)
                    with again.writing(place.name) as writing:  # forget what was read, and keep the name
                        writing.execute(sa.delete(SOURCE).where(named(place.kind, place.name)))
                        inserted(writing, SOURCE, kind=place.kind, name=place.name, place=place.place)
            report.lacking |= read_rest(again, connection)
        with database.writing("rebuild") as ours, again.sql.reading() as theirs:
            _replace(ours, theirs, places)
    return report


def _replace(ours: sa.Connection, theirs: sa.Connection, places: tuple[SourcePlace, ...]) -> None:
    if ours.dialect.name == "postgresql":
        ours.exec_driver_sql("SET LOCAL statement_timeout = 0")
        ours.exec_driver_sql("LOCK TABLE source IN ACCESS EXCLUSIVE MODE")  # whoever adds reads it first
    if places_of(ours) != places:
        raise UnavailableError("places were added or forgotten meanwhile, and nothing was replaced; rebuild again")
    kept = {name: list(NaturalRows(ours).of(METADATA.tables[name])) for name in sorted(ONLY_HERE)}
    for table in reversed(METADATA.sorted_tables):
        ours.execute(sa.delete(table))
    for table in derived_tables():
        rows = theirs.execute(sa.select(table).execution_options(yield_per=PAGE))
        insert_many(ours, table, (tuple(row) for row in rows), table.c.keys())
        if ours.dialect.name == "postgresql" and "id" in table.c:
            # The next row gets a number that is free: PostgreSQL does not look at those that were given.
            sequence = f"pg_get_serial_sequence('{table.name}', 'id')"
            ours.exec_driver_sql(f'SELECT setval({sequence}, coalesce(max(id), 0) + 1, false) FROM "{table.name}"')
    for table in METADATA.sorted_tables:
        if table.name in kept:
            _put_back(ours, table, kept[table.name])


def _put_back(connection: sa.Connection, table: sa.Table, rows: list[tuple[Key, tuple[Any, ...]]]) -> None:
    """Insert rows that were known by their natural keys; a link to a row that is gone is left empty."""
    names, numbers = (*key_of(table), *values_of(table)), NaturalRows(connection)
    for key, values in rows:
        row = dict(zip(names, (*key, *values), strict=True))
        for name, value in row.items():
            if table.c[name].foreign_keys and value is not None:
                row[name] = numbers.numbers(target_of(table.c[name])).get(value)
        connection.execute(sa.insert(table).values(**row))


# Compares the stored files that a database names with the blobs of a store and the files that are there.


def blob_findings(connection: sa.Connection, blobs: Blobs, quick: bool = False) -> Iterator[str]:
    """What is wrong with the stored files of all runs; with `quick`, the bytes are not read.

    Raises `MalformedError` at a row that names no digest, and `UnavailableError` where the store cannot be read.
    """
    judged: dict[tuple[Digest, int], str] = {}
    for place in places_of(connection):
        for stored in stored_files(connection, place.name).values() if place.kind == "run" else ():
            key = (stored.blob, stored.bytes)
            if key not in judged:
                judged[key] = _of_blob(blobs, stored, quick)
            problem = judged[key] or ("" if quick else _of_file(Path(place.place) / stored.file, stored))
            if problem:
                yield f"{place.name}: {stored.file}: {problem}"


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
    digest = blob_digest(path)
    return "" if digest == stored.blob else f"is {digest}, and blob {stored.blob} was stored"


# Compares every row of a database with the files that it came from, and these with the roots that are claimed.
#
# The places that the database names are read anew into a database beside it, and the two are compared row by row. So
# whatever a reading writes is compared, and the next kind of row is, too.

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
            for line in blob_findings(ours, blobs, quick):
                report.found(line)
            if quick:
                report.unchecked.append("blobs: their bytes were left out")
        _note_only_here(report, ours)
    return report


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
        for difference in differences(left, right, table):
            if _is_open(table, difference, unread, lacking):
                passed += 1
            else:
                report.found(str(difference))
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


def _is_open(table: sa.Table, difference: RowDifference, unread: Set[Key], lacking: Set[Key]) -> bool:
    """Whether the files that are there cannot say that this row is wrong."""
    origin = origin_of(table, difference.key)
    if origin in unread:
        return True
    return difference.theirs is None and (origin in lacking or (origin is None and bool(lacking)))


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

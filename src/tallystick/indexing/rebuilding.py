"""Makes a database anew from the places that it names, and puts the new rows in the place of the old ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import sqlalchemy as sa

from tallystick.errors import MalformedError, UnavailableError
from tallystick.indexing.reading_again import read_again, read_rest
from tallystick.indexing.sources import SourcePlace, places_of
from tallystick.store.database.bulk import insert_many
from tallystick.store.database.natural_rows import (
    Key,
    NaturalRows,
    derived_tables,
    key_of,
    target_of,
    values_of,
)
from tallystick.store.database.schema import METADATA, ONLY_HERE, SOURCE
from tallystick.store.database.workload_database import WorkloadDatabase

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
    with (
        TemporaryDirectory(prefix="tally-rebuild-", dir=_beside(database)) as folder,
        WorkloadDatabase(Path(folder) / "again.db", writable=True) as again,
    ):
        with database.sql.reading() as connection:
            places = places_of(connection)
            for place in places:
                _read(again, connection, place, report)
            report.lacking |= read_rest(again, connection)
        with database.writing("rebuild") as ours, again.sql.reading() as theirs:
            _replace(ours, theirs, places)
    return report


def _read(again: WorkloadDatabase, ours: sa.Connection, place: SourcePlace, report: RebuildReport) -> None:
    try:
        read_again(again, ours, place)
        report.read.append(place.name)
    except (MalformedError, UnavailableError) as error:
        report.lacking[place.name] = str(error)
        _only_named(again, place.kind, place.name, place.place)


def _beside(database: WorkloadDatabase) -> Path | None:
    """The folder of the database, whose disk has room for a second one; `None` for the one of temporary files."""
    return database.sql.path.parent if database.sql.is_file else None


def _only_named(again: WorkloadDatabase, kind: str, name: str, place: str) -> None:
    """Forget what was read of a place, and keep its name."""
    with again.writing(name) as connection:
        connection.execute(sa.delete(SOURCE).where(SOURCE.c.kind == kind, SOURCE.c.name == name))
        connection.execute(sa.insert(SOURCE).values(kind=kind, name=name, place=place))


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
        insert_many(ours, table, table.c.keys(), (tuple(row) for row in rows))
        _count_on(ours, table)
    for table in METADATA.sorted_tables:
        if table.name in kept:
            _put_back(ours, table, kept[table.name])


def _count_on(connection: sa.Connection, table: sa.Table) -> None:
    """Let the next row get a number that is free: PostgreSQL does not look at those that were given."""
    if connection.dialect.name == "postgresql" and "id" in table.c:
        sequence = f"pg_get_serial_sequence('{table.name}', 'id')"
        connection.exec_driver_sql(f'SELECT setval({sequence}, coalesce(max(id), 0) + 1, false) FROM "{table.name}"')


def _put_back(connection: sa.Connection, table: sa.Table, rows: list[tuple[Key, tuple[Any, ...]]]) -> None:
    """Insert rows that were known by their natural keys; a link to a row that is gone is left empty."""
    names, numbers = (*key_of(table), *values_of(table)), NaturalRows(connection)
    for key, values in rows:
        row = dict(zip(names, (*key, *values), strict=True))
        for name, value in row.items():
            if table.c[name].foreign_keys and value is not None:
                row[name] = numbers.numbers(target_of(table.c[name])).get(value)
        connection.execute(sa.insert(table).values(**row))

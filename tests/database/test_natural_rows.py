"""Two databases side by side: every cell of every table that files hold is compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tallystick.database.bulk import NaturalRows, derived_tables, differences, key_of
from tallystick.database.schema import METADATA, ONLY_HERE
from tallystick.database.workload_database import WorkloadDatabase

TABLES = derived_tables()
CELLS = [(table.name, column.name) for table in TABLES for column in table.c if column.name != "id"]


def value_of(column: sa.Column[Any], row: int) -> Any:
    """A value of the column's type that is another one in each row; links lead to the row of the same number."""
    kind = column.type
    if column.foreign_keys or column.name == "id":
        return row
    if isinstance(kind, sa.Boolean):
        return row == 1
    if isinstance(kind, sa.LargeBinary):
        return bytes([row])
    return f"{column.name} {row}" if isinstance(kind, sa.Text) else row


def fill(database: WorkloadDatabase, order: tuple[int, ...]) -> None:
    """Two rows in each table, inserted in the given order."""
    with database.writing("") as connection:
        for table in METADATA.sorted_tables:
            for row in order:
                connection.execute(sa.insert(table).values({each.name: value_of(each, row) for each in table.c}))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WorkloadDatabase, WorkloadDatabase]]:
    """Two databases with the same rows, which were inserted in another order."""
    folder = tmp_path_factory.mktemp("pair")
    with (
        WorkloadDatabase(folder / "one.db", writable=True) as one,
        WorkloadDatabase(folder / "other.db", writable=True) as other,
    ):
        fill(one, (1, 2))
        fill(other, (2, 1))
        yield one, other


def found(ours: sa.Connection, theirs: NaturalRows, *tables: str) -> list[str]:
    left = NaturalRows(ours)
    return [str(each) for name in tables for each in differences(left, theirs, METADATA.tables[name])]


@pytest.fixture(scope="module")
def files(pair: tuple[WorkloadDatabase, WorkloadDatabase]) -> Iterator[NaturalRows]:
    """The rows of the second database."""
    with pair[1].sql.reading() as connection:
        yield NaturalRows(connection)


def test_the_same_rows_agree(pair: tuple[WorkloadDatabase, WorkloadDatabase], files: NaturalRows) -> None:
    with pair[0].sql.reading() as ours:
        assert found(ours, files, *(table.name for table in TABLES)) == []


@pytest.mark.parametrize(("table", "column"), CELLS)
def test_a_changed_cell_is_found_and_named(
    pair: tuple[WorkloadDatabase, WorkloadDatabase], files: NaturalRows, table: str, column: str
) -> None:
    cell = METADATA.tables[table].c[column]
    key = METADATA.tables[table].primary_key.columns.values()[0]
    with pair[0].sql.engine.connect() as ours:
        changed: Any = 2 if cell.foreign_keys else not value_of(cell, 1)
        if not cell.foreign_keys and not isinstance(cell.type, sa.Boolean):
            changed = value_of(cell, 7)
        ours.exec_driver_sql("PRAGMA foreign_keys=OFF")
        if cell.foreign_keys and column in key_of(METADATA.tables[table]):  # else two rows would have one key
            ours.execute(sa.delete(METADATA.tables[table]).where(key == value_of(key, 2)))
        ours.execute(sa.update(METADATA.tables[table]).where(key == value_of(key, 1)).values({column: changed}))
        lines = found(ours, files, table)
        ours.rollback()
    assert any(line.startswith(table) for line in lines)
    if column not in key_of(METADATA.tables[table]):
        assert f"{column} is " in lines[0]


@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_a_row_that_was_deleted_is_found(
    pair: tuple[WorkloadDatabase, WorkloadDatabase], files: NaturalRows, table: str
) -> None:
    key = METADATA.tables[table].primary_key.columns.values()[0]
    with pair[0].sql.engine.connect() as ours:
        ours.exec_driver_sql("PRAGMA foreign_keys=OFF")
        ours.execute(sa.delete(METADATA.tables[table]).where(key == value_of(key, 1)))
        missing = found(ours, files, table)
        ours.rollback()
    assert any(line.startswith(table) and "not in the database" in line for line in missing)


def test_every_table_is_compared_or_named_as_one_that_no_file_holds() -> None:
    assert {table.name for table in TABLES} | ONLY_HERE == METADATA.tables.keys()
    assert all(key_of(table) for table in METADATA.tables.values())

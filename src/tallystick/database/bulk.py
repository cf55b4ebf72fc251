"""Many rows at once, and the rows of two databases side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tallystick.database.schema import METADATA, ONLY_HERE, SOURCE, target_of

# Many rows at once, in the fastest way that each database has.

BATCH: Final = 10_000
MANY: Final = 100_000
"""Rows after which PostgreSQL samples a table anew, before its own daemon does: plans go by what it knows."""


def inserted(connection: sa.Connection, table: sa.Table, **values: Any) -> int:
    """Insert one row, and return its number."""
    return int(connection.execute(sa.insert(table).values(**values).returning(table.c.id)).scalar_one())


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert those of `rows` that are not there yet, as their keys say; others may insert the same ones at this time.

    Rows that many may insert are given in the order of their keys: two transactions then never wait for each other.
    """
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    if rows:
        connection.execute(insert(table).on_conflict_do_nothing(), rows)


def insert_many(
    connection: sa.Connection, table: sa.Table, rows: Iterable[tuple[Any, ...]], names: Sequence[str] = ()
) -> int:
    """Insert `rows`, whose values are in the order of `names`; returns how many they are.

    Without names, a row has all columns of the table but the number that it is given here.

    SQLite takes `executemany`, PostgreSQL COPY, both in batches: no statement takes longer than statements may.
    """
    names = names or [column.name for column in table.c if column.name != "id"]
    raw = connection.connection.driver_connection
    assert raw is not None
    insert = _copy if connection.dialect.name == "postgresql" else _execute_many
    rest, count = iter(rows), 0
    while batch := list(islice(rest, BATCH)):
        insert(raw, table, names, batch)
        count += len(batch)
    if count >= MANY and connection.dialect.name == "postgresql":
        sampled = ", ".join(sorted(f'"{each.name}"' for each in _with_parents(table)))
        connection.exec_driver_sql(f"ANALYZE (SKIP_LOCKED) {sampled}")
    return count


def _with_parents(table: sa.Table) -> set[sa.Table]:
    """A table, and those that its rows lead to: small ones are never sampled by the daemon, and views join them."""
    parents = (link.column.table for link in table.foreign_keys)
    return {table}.union(*(_with_parents(parent) for parent in parents))


def _execute_many(raw: Any, table: sa.Table, names: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
    marks, columns = ", ".join("?" * len(names)), ", ".join(f'"{name}"' for name in names)
    raw.executemany(f'INSERT INTO "{table.name}" ({columns}) VALUES ({marks})', rows)


def _copy(raw: Any, table: sa.Table, names: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
    columns = ", ".join(f'"{name}"' for name in names)
    with raw.cursor() as cursor, cursor.copy(f'COPY "{table.name}" ({columns}) FROM STDIN') as copy:
        for row in rows:
            copy.write_row(row)


# The rows of two databases side by side: by what they are about, not by their numbers, which each database gives anew.
#
# The natural key of a row is its unique columns, or its primary key; a link stands for the natural key of its target.

PAGE: Final = 10_000
TEXT_MAX: Final = 80
Key: TypeAlias = "tuple[Any, ...]"
Found: TypeAlias = "tuple[Key, tuple[Any, ...]]"
"""A natural key, and the values of the other columns."""


@dataclass(frozen=True)
class RowDifference:
    """A row that two databases do not have in common: `ours` and `theirs` are its values, `None` where it is not."""

    table: str
    key: Key
    ours: tuple[Any, ...] | None
    theirs: tuple[Any, ...] | None

    def __str__(self) -> str:
        table = METADATA.tables[self.table]
        row = f"{self.table} {_key_text(table, self.key)}"
        if self.theirs is None or self.ours is None:
            where = ("the database", "the files") if self.theirs is None else ("the files", "the database")
            return f"{row}: in {where[0]}, and not in {where[1]}"
        differing = (
            f"{name} is {_shown(one)} in the database, and {_shown(other)} in the files"
            for name, one, other in zip(values_of(table), self.ours, self.theirs, strict=True)
            if one != other
        )
        return f"{row}: {'; '.join(differing)}"


class NaturalRows:
    """The rows that a connection sees; reads the names of all rows that others link to at once."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._names: dict[str, dict[int, Key]] = {}
        for table in METADATA.sorted_tables:
            if "id" in table.c:
                key = key_of(table)
                rows = self._connection.execute(sa.select(table.c.id, *(table.c[name] for name in key)))
                self._names[table.name] = {row[0]: self._translated(table, key, row[1:]) for row in rows}

    def of(self, table: sa.Table) -> Iterator[Found]:
        """All rows of a table, in the order of their natural keys."""
        key = key_of(table)
        links = [name for name in key if table.c[name].foreign_keys]
        if not links:
            return self._rows(table, sa.select(table).order_by(*(table.c[name] for name in key)))
        if "id" in table.c or links[0] != key[0]:
            return iter(sorted(self._rows(table, sa.select(table)), key=itemgetter(0)))
        return self._by_parent(table, key, is_plain=links == [key[0]])

    def numbers(self, table: sa.Table) -> dict[Key, int]:
        """The numbers of the rows of a table by their natural keys."""
        return {key: number for number, key in self._names[table.name].items()}

    def _by_parent(self, table: sa.Table, key: Key, is_plain: bool) -> Iterator[Found]:
        """One parent after the other, so that the primary key serves the order."""
        parents = self._names[target_of(table.c[key[0]]).name]
        for number in sorted(parents, key=lambda each: parents[each]):
            rows = self._rows(table, sa.select(table).where(table.c[key[0]] == number).order_by(*table.primary_key))
            yield from rows if is_plain else sorted(rows, key=itemgetter(0))

    def _rows(self, table: sa.Table, select: sa.Select[Any]) -> Iterator[Found]:
        key, values = key_of(table), values_of(table)
        places = {column.name: place for place, column in enumerate(table.c)}
        for row in self._connection.execute(select.execution_options(yield_per=PAGE)):
            given = self._translated(table, (*key, *values), tuple(row[places[name]] for name in (*key, *values)))
            yield given[: len(key)], given[len(key) :]

    def _translated(self, table: sa.Table, names: tuple[str, ...], values: Any) -> Key:
        return tuple(
            self._names[target_of(table.c[name]).name][value]
            if table.c[name].foreign_keys and value is not None
            else value
            for name, value in zip(names, values, strict=True)
        )


def differences(ours: NaturalRows, theirs: NaturalRows, table: sa.Table) -> Iterator[RowDifference]:
    """The rows of a table that are not the same in both, in the order of their natural keys."""
    left, right = ours.of(table), theirs.of(table)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            yield RowDifference(table.name, one[0], one[1], None)
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield RowDifference(table.name, other[0], None, other[1])
            other = next(right, None)
        else:
            if one[1] != other[1]:
                yield RowDifference(table.name, one[0], one[1], other[1])
            one, other = next(left, None), next(right, None)


def derived_tables() -> tuple[sa.Table, ...]:
    """The tables whose rows can be read again from files, those that others refer to first."""
    return tuple(table for table in METADATA.sorted_tables if table.name not in ONLY_HERE)


def key_of(table: sa.Table) -> tuple[str, ...]:
    """The columns of the natural key."""
    if "id" not in table.c:
        return tuple(column.name for column in table.primary_key)
    unique = (each for each in table.constraints if isinstance(each, sa.UniqueConstraint))
    return min(tuple(column.name for column in each.columns) for each in unique)


def values_of(table: sa.Table) -> tuple[str, ...]:
    """The other columns, without the number of the row."""
    return tuple(column.name for column in table.c if column.name not in {"id", *key_of(table)})


def origin_of(table: sa.Table, key: Key) -> Key | None:
    """The kind and name of the place that owns a row; `None` for a row that several places may share."""
    while table is not SOURCE:
        first = table.c[key_of(table)[0]]
        if not first.foreign_keys:
            return None
        table, key = target_of(first), key[0]
    return key


def _key_text(table: sa.Table, key: Key) -> str:
    parts = zip(key_of(table), key, strict=True)
    return ", ".join(
        f"of {_shown(value)}" if table.c[name].foreign_keys else f"{name} {_shown(value)}" for name, value in parts
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    text = value.hex() if isinstance(value, bytes) else "nothing" if value is None else str(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"

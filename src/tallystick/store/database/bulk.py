"""Many rows at once, in the fastest way that each database has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

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
    connection: sa.Connection, table: sa.Table, names: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> int:
    """Insert `rows`, whose values are in the order of `names`; returns how many they are.

    SQLite takes `executemany`, PostgreSQL COPY, both in batches: no statement takes longer than statements may.
    """
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

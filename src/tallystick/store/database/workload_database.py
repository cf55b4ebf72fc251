"""The workload database on SQLite or PostgreSQL: opened, brought to the newest form, asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa

from tallystick.store.database.compile import compiled, counted, totalled
from tallystick.store.database.engine import SqlEngine
from tallystick.store.database.migrating import require_current, upgrade
from tallystick.store.database.query import Page
from tallystick.store.database.row_query import PAGE_MAX, RowQuery

WAIT_S: Final = 120
"""How long a writer waits for others: a trace of millions of events is one transaction."""


class WorkloadDatabase:
    """An open database; a context manager that closes it.

    `place` is a path or a URL (`sqlite:///…`, `postgresql://…`). Where `writable`, its tables are made or brought to
    the newest form; otherwise they must have it.

    Raises:
        UsageError: `place` is no path or URL of a database.
        UnavailableError: there is none, or it cannot be reached.
        MalformedError: it holds the tables of another program.
    """

    def __init__(self, place: str | Path, writable: bool = False) -> None:
        self.sql = SqlEngine(place, "workloads", WAIT_S)
        try:
            if writable:
                with self.sql.writing("schema") as connection:
                    upgrade(connection, self.sql.name)
            else:
                self.sql.require_file("`tally db add` makes one")
                with self.sql.reading() as connection:
                    require_current(connection, self.sql.name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.sql.close()

    @contextmanager
    def writing(self, locked: str) -> Iterator[sa.Connection]:
        """A writing transaction: what it wrote is on disk when the block ends, or nothing of it."""
        with self.sql.writing(locked) as connection:
            yield connection

    def page(self, question: RowQuery) -> Page[Any]:
        """The rows that a question finds, `question.limit` of them at most; raises `UsageError` at a bad question."""
        question.check()
        noun, order = question.asked_noun, question.columns_of_order()
        columns = (*noun.types, *(name for name in order if name not in noun.types))
        limit = min(question.limit or PAGE_MAX, PAGE_MAX)
        statement = compiled(question.model_copy(update={"limit": limit}), columns)
        with self.sql.answering() as connection:
            found: Sequence[Any] = connection.execute(statement).all()
        rows = tuple(noun.row(*each[: len(noun.types)]) for each in found)
        after = tuple(found[-1]._mapping[name] for name in order) if len(found) == limit else None
        return Page(rows, after)

    def count(self, question: RowQuery) -> int:
        """How many rows a question finds in all; raises `UsageError` at a bad question."""
        question.check()
        with self.sql.answering() as connection:
            return int(connection.execute(counted(question)).scalar_one())

    def total(self, question: RowQuery, field: str) -> float:
        """The sum of a field over the rows that a question finds; raises `UsageError` where it is no number."""
        question.check_total(field)
        with self.sql.answering() as connection:
            return float(connection.execute(totalled(question, field)).scalar_one())

"""The workload database on SQLite or PostgreSQL: opened, brought to the newest form, asked by compiled queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import sqlalchemy as sa

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.sql import SqlEngine
from tallystick.database.query import PAGE_MAX, FieldCondition, FieldTest, Page, RowQuery
from tallystick.database.rows import NOUNS, RELATIONS
from tallystick.database.schema import drop_views, make_views, view

if TYPE_CHECKING:
    from alembic.config import Config


# Compiles a question to SQL over the views.

ONE_OF_A_NAME: Final = frozenset({"graphs", "runs", "streams", "traces"})
"""The nouns of which no two rows have the same name (a graph: the same root)."""


def compiled(question: RowQuery, columns: tuple[str, ...]) -> sa.Select[Any]:
    """The statement that selects `columns`; `question` has been checked."""
    table = view(question.noun)
    statement = sa.select(*(table.c[name] for name in columns)).where(*_conditions(question, table))
    order = [table.c[name] for name in question.columns_of_order()]
    if question.after is not None:
        statement = statement.where(_beyond(order, question.after, question.descending))
    statement = statement.order_by(*(column.desc() if question.descending else column for column in order))
    return statement.limit(min(question.limit or PAGE_MAX, PAGE_MAX))


def counted(question: RowQuery) -> sa.Select[Any]:
    """The statement that counts the rows."""
    table = view(question.noun)
    return sa.select(sa.func.count()).select_from(table).where(*_conditions(question, table))


def totalled(question: RowQuery, field: str) -> sa.Select[Any]:
    """The statement that adds up a field."""
    table = view(question.noun)
    return sa.select(sa.func.coalesce(sa.func.sum(table.c[field]), 0)).where(*_conditions(question, table))


def _conditions(question: RowQuery, table: sa.TableClause) -> list[sa.ColumnElement[bool]]:
    tests = [_condition(table.c[condition.field], condition) for condition in question.conditions]
    tests += [same for condition in question.conditions for same in _of_parent(question, table, condition)]
    for condition in question.related:
        theirs = view(condition.question.noun)
        wanted = sa.select(theirs.c[condition.their_field]).where(*_conditions(condition.question, theirs))
        tests.append(table.c[condition.field].in_(wanted))
    return tests


def _of_parent(
    question: RowQuery, table: sa.TableClause, condition: FieldCondition
) -> Iterator[sa.ColumnElement[bool]]:
    """Beside the name of what rows belong to, its number: PostgreSQL then reads the rows of one parent in their order.

    By the name alone it may read all of them and sort, because it does not know that only one parent has that name.
    """
    number = question.asked_noun.key[0]
    for (parent, noun), (name, field) in RELATIONS.items():
        is_asked = (noun, field) == (question.noun, condition.field) and condition.asked.equal is not None
        if is_asked and parent in ONE_OF_A_NAME and NOUNS[parent].key[0] == number:
            theirs = view(parent)
            named = sa.select(theirs.c[number]).where(theirs.c[name] == condition.asked.equal)
            yield table.c[number] == named.scalar_subquery()


def _condition(column: sa.ColumnElement[Any], condition: FieldCondition) -> sa.ColumnElement[bool]:
    asked: FieldTest = condition.asked
    tests = []
    if asked.equal is not None:
        tests.append(column == asked.equal)
    if asked.one_of is not None:
        tests.append(column.in_(asked.one_of))
    if asked.at_least is not None:
        tests.append(column >= asked.at_least)
    if asked.below is not None:
        tests.append(column < asked.below)
    if asked.starts_with is not None:  # a range, which an index serves on both databases
        tests += [column >= asked.starts_with, column < asked.starts_with + "\U0010ffff"]
    if asked.stated is not None:
        tests.append(column.is_not(None) if asked.stated else column.is_(None))
    return sa.and_(*tests)


def _beyond(order: list[sa.ColumnClause[Any]], after: tuple[Any, ...], descending: bool) -> sa.ColumnElement[bool]:
    place = sa.tuple_(*order)
    values = sa.tuple_(*(sa.literal(value) for value in after))
    return place < values if descending else place > values


# Brings the tables of a database to the form that this version knows, with Alembic, and makes its views.

VERSION_TABLE: Final = "schema_version"


def upgrade(connection: sa.Connection, name: str) -> None:
    """Make or change the tables inside the caller's transaction.

    Raises:
        MalformedError: the database holds the tables of another program.
        UnavailableError: a newer version of this program wrote it.
    """
    from alembic import command

    form = version(connection, name)
    if form == newest():
        return
    settings = _settings()
    settings.attributes["connection"] = connection
    drop_views(connection)
    command.upgrade(settings, "head")
    make_views(connection)


def require_current(connection: sa.Connection, name: str) -> None:
    """Raise `UnavailableError` unless the tables have the newest form."""
    form = version(connection, name)
    if form is None:
        raise UnavailableError(f"{name}: no workload database; `tally db add` makes one")
    if form != newest():
        raise UnavailableError(f"{name}: the tables have form {form}; `tally db upgrade` brings them to {newest()}")


def version(connection: sa.Connection, name: str) -> str | None:
    """The form of the tables; `None` for an empty database. Raises what `upgrade` raises."""
    tables = sa.inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if tables:
            raise MalformedError(f"{name}: no workload database; it holds the tables {', '.join(sorted(tables)[:3])}")
        return None
    form = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()
    if form is None or str(form) > newest():
        raise UnavailableError(f"{name}: written by a newer version (form {form}); this one knows {newest()}")
    return str(form)


@cache
def newest() -> str:
    """The form that this version writes."""
    from alembic.script import ScriptDirectory

    head = ScriptDirectory.from_config(_settings()).get_current_head()
    assert head is not None
    return head


def _settings() -> Config:
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", "tallystick.database:migrations")
    settings.set_main_option("path_separator", "os")
    return settings


# The workload database on SQLite or PostgreSQL: opened, brought to the newest form, asked.

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
            selected: Sequence[Any] = connection.execute(statement).all()
        rows = tuple(noun.row(*values[: len(noun.types)]) for values in selected)
        after = tuple(selected[-1]._mapping[name] for name in order) if len(selected) == limit else None
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

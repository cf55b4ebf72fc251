"""Compiles a question to SQL over the views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from tallystick.store.database.nouns import NOUNS, RELATIONS
from tallystick.store.database.row_query import PAGE_MAX, FieldCondition, FieldTest, RowQuery
from tallystick.store.database.views import view

ONE_OF_A_NAME: Final = frozenset({"graphs", "runs", "streams", "traces"})
"""The nouns of which no two rows have the same name (a graph: the same root)."""


def compiled(question: RowQuery, columns: tuple[str, ...]) -> sa.Select[Any]:
    """The statement that selects `columns`; `question` has been checked."""
    table = view(question.noun)
    found = sa.select(*(table.c[name] for name in columns)).where(*_conditions(question, table))
    order = [table.c[name] for name in question.columns_of_order()]
    if question.after is not None:
        found = found.where(_beyond(order, question.after, question.descending))
    found = found.order_by(*(column.desc() if question.descending else column for column in order))
    return found.limit(min(question.limit or PAGE_MAX, PAGE_MAX))


def counted(question: RowQuery) -> sa.Select[Any]:
    """The statement that counts the rows."""
    table = view(question.noun)
    return sa.select(sa.func.count()).select_from(table).where(*_conditions(question, table))


def totalled(question: RowQuery, field: str) -> sa.Select[Any]:
    """The statement that adds up a field."""
    table = view(question.noun)
    return sa.select(sa.func.coalesce(sa.func.sum(table.c[field]), 0)).where(*_conditions(question, table))


def _conditions(question: RowQuery, table: sa.TableClause) -> list[sa.ColumnElement[bool]]:
    found = [_condition(table.c[each.field], each) for each in question.conditions]
    found += [same for each in question.conditions for same in _of_parent(question, table, each)]
    for each in question.related:
        theirs = view(each.question.noun)
        wanted = sa.select(theirs.c[each.their_field]).where(*_conditions(each.question, theirs))
        found.append(table.c[each.field].in_(wanted))
    return found


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

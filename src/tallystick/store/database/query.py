"""Queries: questions that are put together in Python, and asked when somebody iterates over them.

    db.steps.where(run="digits", step=range(100, 200), loss=at_least(3.0))
    db.runs.where(status="claimed").audits.where(outcome="rejected")

A query is the same object over a database on this machine and over one behind a URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from tallystick.errors import UnavailableError, UsageError
from tallystick.store.database.nouns import NOUNS
from tallystick.store.database.row_query import PAGE, FieldCondition, FieldTest, RowQuery, Value, asked_of

Row = TypeVar("Row")


@dataclass(frozen=True)
class Page(Generic[Row]):
    """Some rows, and the place from which the next page goes on; `None` after the last one."""

    rows: tuple[Row, ...]
    after: tuple[Value, ...] | None


class Answers(Protocol):
    """Whoever answers questions: a database here, or the client of one elsewhere."""

    def page(self, question: RowQuery) -> Page[Any]:
        """The rows that a question finds, `question.limit` of them at most."""

    def count(self, question: RowQuery) -> int:
        """How many rows a question finds in all."""

    def total(self, question: RowQuery, field: str) -> float:
        """The sum of a field over the rows that a question finds; raises `UsageError` where it is no number."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True)
class Query(Generic[Row]):
    """Rows of one noun; nothing is read before they are asked for."""

    source: Answers
    question: RowQuery
    wanted: int | None = None

    def where(self, **conditions: Any) -> Query[Row]:
        """Only rows whose fields are as asked.

        A value asks for equality, `None` for a field that is not stated, a list or set for one of its members, a range
        for whole numbers in it; `at_least`, `below`, `between`, `starts_with` and `stated` make the other tests.

        Raises:
            UsageError: there is no such field, or the value does not fit it.
        """
        given = tuple(FieldCondition(field=name, asked=asked_of(value)) for name, value in conditions.items())
        return self._asking(self.question.model_copy(update={"conditions": (*self.question.conditions, *given)}))

    def between(self, start_ns: int, end_ns: int) -> Query[Row]:
        """Only rows that start in a range of time, in nanoseconds since 1970 (UTC)."""
        return self.where(start_ns=FieldTest(at_least=start_ns, below=end_ns))

    def by(self, order: str, descending: bool = False) -> Query[Row]:
        """In another order; raises `UsageError` where rows cannot be ordered by that field."""
        return self._asking(self.question.model_copy(update={"order": order, "descending": descending}))

    def newest_first(self) -> Query[Row]:
        """The last rows first."""
        return self._asking(self.question.model_copy(update={"descending": True}))

    def first(self, count: int) -> Query[Row]:
        """At most `count` rows."""
        return replace(self, wanted=count)

    def about(self, noun: str) -> Query[Any]:
        """The rows of another noun that belong to these; raises `UsageError` where the two are not related."""
        return Query(self.source, self.question.about(noun))

    def __getattr__(self, noun: str) -> Query[Any]:
        if noun not in NOUNS:
            raise AttributeError(noun)
        return self.about(noun)

    def page(self, after: tuple[Value, ...] | None = None, size: int = PAGE) -> Page[Row]:
        """One page, behind the place `after`."""
        return self.source.page(self.question.model_copy(update={"limit": size, "after": after}))

    def __iter__(self) -> Iterator[Row]:
        after, left = None, self.wanted
        while left is None or left > 0:
            found = self.page(after, PAGE * 10 if left is None else min(left, PAGE * 10))
            yield from found.rows
            after, left = found.after, None if left is None else left - len(found.rows)
            if after is None:
                return

    def count(self) -> int:
        """How many rows there are."""
        return self.source.count(self.question)

    def total(self, field: str) -> float:
        """The sum of a number of the rows; raises `UsageError` where it is no number."""
        return self.source.total(self.question, field)

    def one(self) -> Row:
        """The only row; raises `UnavailableError` where there is none, `UsageError` where there are several."""
        found = self.page(size=min(2, self.wanted or 2)).rows
        if not found:
            raise UnavailableError(f"{self.question.noun}: none is as asked")
        if len(found) > 1:
            raise UsageError(f"{self.question.noun}: several are as asked")
        return found[0]

    def _asking(self, question: RowQuery) -> Query[Row]:
        question.check()
        return replace(self, question=question)


def at_least(value: float) -> FieldTest:
    """Numbers that are not below `value`."""
    return FieldTest(at_least=value)


def below(value: float) -> FieldTest:
    """Numbers below `value`."""
    return FieldTest(below=value)


def between(least: float, end: float) -> FieldTest:
    """Numbers from `least` on that are below `end`."""
    return FieldTest(at_least=least, below=end)


def starts_with(text: str) -> FieldTest:
    """Text that begins so: a digest by its first digits."""
    return FieldTest(starts_with=text)


def stated() -> FieldTest:
    """Any value, but not none."""
    return FieldTest(stated=True)

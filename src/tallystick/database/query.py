"""Queries: put together in Python, as data, and as JSON that travels between a service and its clients."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from tallystick.core.canonical_json import DEPTH_MAX, has_more_lists, is_deep, shown
from tallystick.core.documents import Document, Positive, explain
from tallystick.core.errors import MalformedError, UnavailableError, UsageError, suggestion
from tallystick.database.nouns import Noun
from tallystick.database.rows import (
    NOUNS,
    RELATIONS,
    AnchorRow,
    AuditRow,
    BindingRow,
    ChallengeRow,
    ClaimRow,
    DeviceRow,
    DisputeRow,
    EnvironmentRow,
    EventRow,
    FindingRow,
    GraphRow,
    LinkRow,
    OperatorRow,
    ReceiptRow,
    RecordRow,
    RunRow,
    StepRow,
    TensorRow,
    TraceRow,
)

# A query as data: it compiles to SQL where the rows are, and travels as JSON to where they are.

PAGE: Final = 100
PAGE_MAX: Final = 10_000
CONDITIONS_MAX: Final = 64
QUERY_DEPTH_MAX: Final = 8
QUESTIONS_MAX: Final = 64
VALUES_MAX: Final = 10_000
"""In a question with all those inside it: PostgreSQL takes 65 535 values, and SQLite goes 1000 expressions deep."""
INTEGER_END: Final = 1 << 63
"""The databases hold integers of 64 bits."""

Bound = Annotated[str, Field(max_length=4096)] | int | float
Value = Bound | bool
FieldName = Annotated[str, Field(pattern=r"^[a-z_]{1,64}$")]


class FieldTest(Document):
    """What a field has to be: one of the members is there, and those of a range may be there together."""

    equal: Value | None = None
    one_of: Annotated[tuple[Value, ...], Field(max_length=1000)] | None = None
    at_least: Bound | None = None
    below: Bound | None = None
    starts_with: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    stated: bool | None = None


class FieldCondition(Document):
    """A field of the rows that are asked for, and what it has to be."""

    field: FieldName
    asked: FieldTest


class RelatedRows(Document):
    """That `field` holds what `their_field` holds in one of the rows that another question finds."""

    field: FieldName
    their_field: FieldName
    question: RowQuery


class RowQuery(Document):
    """Rows of one noun that meet every condition, in the order of their key or of `order`.

    `after` is the place of the last row of the page before: what `Page.after` holds.
    """

    noun: FieldName
    conditions: Annotated[tuple[FieldCondition, ...], Field(max_length=CONDITIONS_MAX)] = ()
    related: Annotated[tuple[RelatedRows, ...], Field(max_length=CONDITIONS_MAX)] = ()
    order: FieldName | None = None
    descending: bool = False
    limit: Positive | None = None
    after: tuple[Value, ...] | None = None

    @property
    def asked_noun(self) -> Noun:
        """The noun; raises `UsageError` where there is none of that name."""
        if self.noun not in NOUNS:
            raise UsageError(f"no such noun {self.noun}" + suggestion(self.noun, NOUNS))
        return NOUNS[self.noun]

    def columns_of_order(self) -> tuple[str, ...]:
        """The columns that order the rows; raises `UsageError` where they cannot be ordered by `order`."""
        noun = self.asked_noun
        if self.order is None:
            return noun.key
        if self.order not in noun.possible_orders:
            near = suggestion(self.order, noun.possible_orders)
            raise UsageError(f"{self.noun}: rows have no order by {self.order}{near}")
        if self.order in noun.key:
            return noun.key
        return (*noun.key[:-1], self.order, noun.key[-1])  # as an index has them: the rows of one parent together

    def check(self, depth: int = 0) -> None:
        """Raise `UsageError` at a noun, field or value that does not fit, or at too many questions in each other."""
        if depth > QUERY_DEPTH_MAX:
            raise UsageError(f"{self.noun}: more than {QUERY_DEPTH_MAX} questions inside each other")
        questions, values = _size(self) if depth == 0 else (0, 0)
        if questions > QUESTIONS_MAX or values > VALUES_MAX:
            raise UsageError(
                f"{self.noun}: {questions} questions with {values} values; "
                f"{QUESTIONS_MAX} and {VALUES_MAX} are asked at once"
            )
        types = self.asked_noun.types
        self._check_place(types)
        for condition in self.conditions:
            _check_values(self.noun, condition, _type_of(self.noun, condition.field, types))
        for related in self.related:
            own = _type_of(self.noun, related.field, types)
            if own is not _type_of(related.question.noun, related.their_field, related.question.asked_noun.types):
                raise UsageError(f"{self.noun}: {related.field} never holds what {related.their_field} holds")
            related.question.check(depth + 1)

    def _check_place(self, types: Any) -> None:
        order = self.columns_of_order()
        if self.after is None:
            return
        if len(self.after) != len(order):
            raise UsageError(f"{self.noun}: a place has {len(order)} values")
        for column, value in zip(order, self.after, strict=True):  # a column that is no field holds row numbers
            _check_value(self.noun, column, types.get(column, int), value)

    def check_total(self, field: str) -> None:
        """As `check`; raise `UsageError` also where `field` is no number."""
        self.check()
        if self.asked_noun.types.get(field) not in (int, float):
            raise UsageError(f"{self.noun}: {field} is no number that can be added up")

    def about(self, noun: str) -> RowQuery:
        """The rows of another noun that belong to those found; raises `UsageError` where the two are not related."""
        straight, reverse = RELATIONS.get((self.noun, noun)), RELATIONS.get((noun, self.noun))
        pair = straight if straight is not None else None if reverse is None else reverse[::-1]
        if pair is None:
            raise UsageError(f"{self.noun} are not related to {noun}")
        own, theirs = pair
        return RowQuery(noun=noun, related=(RelatedRows(field=theirs, their_field=own, question=self),))


def asked_of(value: Any) -> FieldTest:
    """What a keyword asks for: a value, a set of values, a range of integers, `None`, or `FieldTest` itself."""
    if isinstance(value, FieldTest):
        return value
    if value is None:
        return FieldTest(stated=False)
    if isinstance(value, range):
        if value.step != 1:
            raise UsageError("a range without steps is asked")
        return FieldTest(at_least=value.start, below=value.stop)
    if isinstance(value, list | tuple | set | frozenset):
        return FieldTest(one_of=tuple(sorted(value)))
    try:
        return FieldTest(equal=value)
    except ValidationError:
        raise UsageError(f"{shown(value)}: no text of at most 4096 characters, and no number") from None


def _size(question: RowQuery) -> tuple[int, int]:
    """The number of questions in all, and of values in their conditions."""
    inside = [_size(inner.question) for inner in question.related]
    values = sum(len(inner.asked.one_of or ()) + 1 for inner in question.conditions)
    return 1 + sum(count for count, _ in inside), values + sum(count for _, count in inside)


def _type_of(noun: str, field: str, types: Any) -> type:
    if field not in types:
        raise UsageError(f"{noun}: no such field {field}" + suggestion(field, types))
    found: type = types[field]
    return found


def _check_values(noun: str, condition: FieldCondition, kind: type) -> None:
    asked = condition.asked
    values = [each for each in (asked.equal, asked.at_least, asked.below, asked.starts_with) if each is not None]
    values += asked.one_of or ()
    if not values and asked.stated is None and asked.one_of is None:
        raise UsageError(f"{noun}: nothing is asked of {condition.field}")
    for value in values:
        _check_value(noun, condition.field, kind, value)


def _check_value(noun: str, field: str, kind: type, value: Value) -> None:
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, _TAKEN[kind]):
        raise UsageError(f"{noun}: {field} is {_NAMES[kind]}, and {value!r} is not")
    if isinstance(value, str):
        can_be_kept = "\0" not in value
    else:
        can_be_kept = math.isfinite(value) if isinstance(value, float) else abs(value) < INTEGER_END
    if not can_be_kept:
        raise UsageError(f"{noun}: {field} cannot be {value!r}; a database holds no such value")


_TAKEN: Final[dict[type, Any]] = {str: str, bool: bool, int: int | float, float: int | float}
_NAMES: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


# Queries: questions that are put together in Python, and asked when somebody iterates over them.
#
#     db.steps.where(run="digits", step=range(100, 200), loss=at_least(3.0))
#     db.runs.where(status="claimed").audits.where(outcome="rejected")
#
# A query is the same object over a database on this machine and over one behind a URL.

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
            page = self.page(after, PAGE * 10 if left is None else min(left, PAGE * 10))
            yield from page.rows
            after, left = page.after, None if left is None else left - len(page.rows)
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
        rows = self.page(size=min(2, self.wanted or 2)).rows
        if not rows:
            raise UnavailableError(f"{self.question.noun}: none is as asked")
        if len(rows) > 1:
            raise UsageError(f"{self.question.noun}: several are as asked")
        return rows[0]

    def _asking(self, question: RowQuery) -> Query[Row]:
        question.check()
        return replace(self, question=question)


class NounQuery(Generic[Row]):
    """An attribute of `DatabaseQueries`: all rows of the noun of its name."""

    def __init__(self, row: type[Row]) -> None:
        self._row = row

    def __set_name__(self, owner: type, name: str) -> None:
        assert NOUNS[name].row is self._row
        self._noun = name

    def __get__(self, database: DatabaseQueries, owner: type | None = None) -> Query[Row]:
        return database.about(self._noun)


class DatabaseQueries:
    """What a database holds, one query for each noun; `about` reaches the others of `tallystick.database.rows`."""

    def __init__(self, source: Answers) -> None:
        self._source = source

    def about(self, noun: str) -> Query[Any]:
        """All rows of a noun; raises `UsageError` where there is none of that name."""
        question = RowQuery(noun=noun)
        question.check()
        return Query(self._source, question)

    runs = NounQuery(RunRow)
    records = NounQuery(RecordRow)
    steps = NounQuery(StepRow)
    anchors = NounQuery(AnchorRow)
    graphs = NounQuery(GraphRow)
    operators = NounQuery(OperatorRow)
    tensors = NounQuery(TensorRow)
    bindings = NounQuery(BindingRow)
    claims = NounQuery(ClaimRow)
    environments = NounQuery(EnvironmentRow)
    traces = NounQuery(TraceRow)
    events = NounQuery(EventRow)
    devices = NounQuery(DeviceRow)
    links = NounQuery(LinkRow)
    audits = NounQuery(AuditRow)
    findings = NounQuery(FindingRow)
    challenges = NounQuery(ChallengeRow)
    receipts = NounQuery(ReceiptRow)
    disputes = NounQuery(DisputeRow)


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


# Questions and pages of rows as JSON, as they travel between a service and its clients.
#
# Times in nanoseconds are larger than 2^53, so this JSON is not the canonical one; every integer is written exactly.
# A number that is not finite is written as text, as in documents.

NOT_FINITE: Final = ("nan", "inf", "-inf")
_PLACE: Final = TypeAdapter(tuple[str | bool | int | float, ...] | None)


def question_text(question: RowQuery) -> bytes:
    """A question as JSON."""
    return json.dumps(question.model_dump(mode="json", exclude_none=True), separators=(",", ":")).encode()


def read_question(data: bytes, what: str) -> RowQuery:
    """The question in JSON of any layout; raises `MalformedError` naming `what` and the field."""
    if is_deep(data, DEPTH_MAX):
        raise MalformedError(f"{what}: nested deeper than {DEPTH_MAX}")
    try:
        return RowQuery.model_validate_json(data)
    except ValidationError as error:
        raise MalformedError(f"{what}: {explain(error, RowQuery, what)}") from None


def page_json(noun: Noun, page: Page[Any]) -> dict[str, Any]:
    """A page of rows as JSON values."""
    rows = [{name: written(getattr(row, name)) for name in noun.types} for row in page.rows]
    return {"rows": rows, "after": None if page.after is None else list(page.after)}


def read_page(noun: Noun, data: bytes, what: str) -> Page[Any]:
    """The page that JSON holds; raises `MalformedError` where a row is none of the noun."""
    value = read_json(data, what, PAGE_MAX + 3)
    if not isinstance(value, dict) or value.keys() != {"rows", "after"} or not isinstance(value["rows"], list):
        raise MalformedError(f"{what}: no page of rows")
    rows = tuple(_row(noun, row, what) for row in value["rows"])
    try:
        return Page(rows, _PLACE.validate_python(value["after"]))
    except ValidationError:
        raise MalformedError(f"{what}: no place behind the page") from None


def read_json(data: bytes, what: str, lists_max: int | None = None) -> Any:
    """The values of JSON in any layout, with integers of any size; raises `MalformedError` naming `what`.

    With `lists_max`, also where it has more lists and objects: empty ones take thirty times their bytes in memory.
    """
    if lists_max is not None and has_more_lists(data, lists_max):
        raise MalformedError(f"{what}: more than {lists_max} lists and objects")
    try:
        return json.loads(b"!" if is_deep(data, DEPTH_MAX) else data)
    except ValueError:
        raise MalformedError(f"{what}: no valid JSON") from None


def written(value: Any) -> Any:
    """A value of a row as JSON has it."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_number(value: Any, what: str) -> float:
    """The number that `written` wrote; raises `MalformedError` naming `what` for another value."""
    is_integer = type(value) is int and -INTEGER_END < value < INTEGER_END
    if is_integer or type(value) is float or value in NOT_FINITE:
        return float(value)
    raise MalformedError(f"{what} is no number")


def _row(noun: Noun, row: Any, what: str) -> Any:
    if not isinstance(row, dict) or row.keys() != noun.types.keys():
        raise MalformedError(f"{what}: a row has other fields than {noun.name} have")
    return noun.row(**{name: _read(noun, name, value, what) for name, value in row.items()})


def _read(noun: Noun, name: str, value: Any, what: str) -> Any:
    kind = noun.types[name]
    if value is None and name in noun.optional:
        return None
    if kind is float:
        return read_number(value, f"{what}: {noun.name}: {name}")
    if type(value) is not kind or (isinstance(value, int) and not -INTEGER_END < value < INTEGER_END):
        raise MalformedError(f"{what}: {noun.name}: {name} is of another type")
    if isinstance(value, str) and not _is_text(value):
        raise MalformedError(f"{what}: {noun.name}: {name} is no text")
    return value


def _is_text(value: str) -> bool:
    """Whether there is UTF-8 for it: JSON may hold half of a character."""
    return value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value)

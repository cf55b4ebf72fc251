"""A query as data: it compiles to SQL where the rows are, and travels as JSON to where they are."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from tallystick.documents.document import Document, Positive
from tallystick.documents.fields import shown
from tallystick.documents.suggestions import suggestion
from tallystick.errors import UsageError
from tallystick.store.database.nouns import NOUNS, RELATIONS, Noun

PAGE: Final = 100
PAGE_MAX: Final = 10_000
CONDITIONS_MAX: Final = 64
DEPTH_MAX: Final = 8
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
        allowed = (*noun.orders, *(each for each in noun.key if each in noun.types))
        if self.order not in allowed:
            raise UsageError(f"{self.noun}: rows have no order by {self.order}" + suggestion(self.order, allowed))
        if self.order in noun.key:
            return noun.key
        return (*noun.key[:-1], self.order, noun.key[-1])  # as an index has them: the rows of one parent together

    def check(self, depth: int = 0) -> None:
        """Raise `UsageError` at a noun, field or value that does not fit, or at too many questions in each other."""
        if depth > DEPTH_MAX:
            raise UsageError(f"{self.noun}: more than {DEPTH_MAX} questions inside each other")
        if depth == 0:
            self._check_size()
        types = self.asked_noun.types
        self._check_place(types)
        for condition in self.conditions:
            _check_values(self.noun, condition, _type_of(self.noun, condition.field, types))
        for each in self.related:
            own = _type_of(self.noun, each.field, types)
            if own is not _type_of(each.question.noun, each.their_field, each.question.asked_noun.types):
                raise UsageError(f"{self.noun}: {each.field} never holds what {each.their_field} holds")
            each.question.check(depth + 1)

    def _check_size(self) -> None:
        questions, values = _size(self)
        if questions > QUESTIONS_MAX or values > VALUES_MAX:
            raise UsageError(
                f"{self.noun}: {questions} questions with {values} values; "
                f"{QUESTIONS_MAX} and {VALUES_MAX} are asked at once"
            )

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
    inside = [_size(each.question) for each in question.related]
    values = sum(len(each.asked.one_of or ()) + 1 for each in question.conditions)
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
    if not _is_held(value):
        raise UsageError(f"{noun}: {field} cannot be {value!r}; a database holds no such value")


def _is_held(value: Value) -> bool:
    if isinstance(value, str):
        return "\0" not in value
    return math.isfinite(value) if isinstance(value, float) else abs(value) < INTEGER_END


_TAKEN: Final[dict[type, Any]] = {str: str, bool: bool, int: int | float, float: int | float}
_NAMES: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}

"""How a row class describes its noun: the marks on its fields say what the type alone does not.

    @noun("steps", table="step")
    class StepRow:
        run: Annotated[str, KEY, NumberOf("run"), Of("runs", "name")]
        step: Annotated[int, KEY]
        loss: float | None

Tables, views, relations between nouns and the JSON schemas of the service are read from these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any, Final, TypeVar, dataclass_transform, get_args, get_type_hints

Row = TypeVar("Row")


class Mark(Enum):
    """How the table keeps a field."""

    KEY = "a part of the primary key; a table without one numbers its rows"
    UNIQUE = "no two rows have the same"
    INDEXED = "rows are looked up by it"
    HASH = "32 bytes in the table, hexadecimal digits in the view"
    ELSEWHERE = "no column: the view takes it from another table"


KEY, UNIQUE, INDEXED, HASH, ELSEWHERE = Mark


@dataclass(frozen=True)
class NumberOf:
    """The table keeps the number of a row of `table`, whose name the field shows; `column` if it has another name."""

    table: str
    column: str = ""


@dataclass(frozen=True)
class Of:
    """The field holds what `field` of another noun holds, to which the rows belong."""

    noun: str
    field: str


@dataclass(frozen=True)
class To(Of):
    """The field holds what `field` of another noun holds, to which the rows lead."""


@dataclass(frozen=True)
class RowField:
    """A field of a row class: its type without `None`, whether it may be `None`, and its marks."""

    name: str
    kind: type
    is_optional: bool
    marks: tuple[Any, ...]

    @property
    def number_of(self) -> NumberOf | None:
        """Whose number the table keeps."""
        return next((mark for mark in self.marks if isinstance(mark, NumberOf)), None)

    @property
    def column(self) -> str:
        """The name of its column."""
        return (self.number_of and self.number_of.column) or self.name


@dataclass(frozen=True)
class Noun:
    """What can be asked for by `name`: its rows, and how they are ordered.

    `stated_key` is the key of a noun without a table of its own. `orders` are further columns by which rows can be
    ordered, within what they belong to. None of these columns is ever empty.
    """

    name: str
    row: type[Any]
    table: str | None = None
    stated_key: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()

    @cached_property
    def fields(self) -> tuple[RowField, ...]:
        """The fields in the order of the row class, which is that of its JSON."""
        plain, marked = get_type_hints(self.row), get_type_hints(self.row, include_extras=True)
        return tuple(
            RowField(
                each.name,
                next((kind for kind in get_args(plain[each.name]) if kind is not type(None)), plain[each.name]),
                type(None) in get_args(plain[each.name]),
                getattr(marked[each.name], "__metadata__", ()),
            )
            for each in fields(self.row)
        )

    @cached_property
    def types(self) -> Mapping[str, type]:
        """The type of each field, without `None`."""
        return {field.name: field.kind for field in self.fields}

    @cached_property
    def optional(self) -> frozenset[str]:
        """The fields that need not be stated."""
        return frozenset(field.name for field in self.fields if field.is_optional)

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The columns of the view that order the rows and name one."""
        marked = [
            f"{field.column}_id" if field.number_of else field.name for field in self.fields if KEY in field.marks
        ]
        return self.stated_key or tuple(marked) or (f"{self.table}_id",)

    @property
    def possible_orders(self) -> tuple[str, ...]:
        """The fields by which rows can be ordered."""
        return (*self.orders, *(name for name in self.key if name in self.types))


NOUNS: Final[dict[str, Noun]] = {}


@dataclass_transform(frozen_default=True)
def noun(
    name: str, table: str | None = None, key: tuple[str, ...] = (), orders: tuple[str, ...] = ()
) -> Callable[[type[Row]], type[Row]]:
    """Make a class the frozen dataclass of rows of the noun `name`."""

    def decorate(row: type[Row]) -> type[Row]:
        row = dataclass(frozen=True)(row)
        NOUNS[name] = Noun(name, row, table, key, orders)
        return row

    return decorate


def relations() -> dict[tuple[str, str], tuple[str, str]]:
    """Which fields of two nouns hold the same; each can be followed in both directions."""
    pairs = {}
    for noun in NOUNS.values():
        for field in noun.fields:
            for mark in field.marks:
                if isinstance(mark, To):
                    pairs[noun.name, mark.noun] = (field.name, mark.field)
                elif isinstance(mark, Of):
                    pairs[mark.noun, noun.name] = (mark.field, field.name)
    return pairs

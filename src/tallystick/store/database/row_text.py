"""Questions and pages of rows as JSON, as they travel between a service and its clients.

Times in nanoseconds are larger than 2^53, so this JSON is not the canonical one; every integer is written exactly.
A number that is not finite is written as text, as in documents.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from tallystick.commitments.nesting import DEPTH_MAX, has_more_lists, is_deep
from tallystick.documents.explained import explain
from tallystick.errors import MalformedError
from tallystick.store.database.nouns import Noun
from tallystick.store.database.query import Page
from tallystick.store.database.row_query import INTEGER_END, PAGE_MAX, RowQuery

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

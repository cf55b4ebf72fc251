"""Questions in a URL: `/v1/steps?run=digits&step.at_least=100&loss.stated=true&limit=50`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from tallystick.commitments.nesting import loose_json
from tallystick.errors import UsageError
from tallystick.store.database.nouns import NOUNS
from tallystick.store.database.row_query import FieldCondition, FieldTest, RowQuery, Value
from tallystick.store.database.row_text import read_question

TESTS: Final = ("at_least", "below", "starts_with", "stated")
_BOOLEANS: Final = {"true": True, "false": False}
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")


def question_of(noun: str, parameters: Iterable[tuple[str, str]]) -> RowQuery:
    """The question that the parameters of a URL ask; raises `UsageError` at one that does not fit the noun."""
    settings: dict[str, Any] = {}
    values: dict[tuple[str, str], list[Value]] = {}
    for name, text in parameters:
        if name in _SETTINGS:
            if name in settings:
                raise UsageError(f"{name}: given twice")
            settings[name] = _SETTINGS[name](name, text)
        else:
            field, _, test = name.partition(".")
            values.setdefault((field, test), []).append(_value(noun, name, text))
    asked = tuple(_condition(field, test, found) for (field, test), found in values.items())
    question = RowQuery.model_construct(noun=noun, conditions=asked, **settings)
    return read_question(question.model_dump_json(exclude_none=True).encode(), "the URL")


def _value(noun: str, name: str, text: str) -> Value:
    field, _, test = name.partition(".")
    kind = NOUNS[noun].types.get(field)
    if kind is None or (test and test not in TESTS) or name.endswith("."):
        raise UsageError(f"{noun}: no such parameter {name[:80]}")
    if kind is bool or test == "stated":
        return _boolean(name, text)
    return text if kind is str else _integer(name, text) if kind is int else _number(name, text)


def _condition(field: str, test: str, values: list[Value]) -> FieldCondition:
    if len(values) > 1 and test:
        raise UsageError(f"{field}.{test}: given twice")
    if len(values) > 1:
        return FieldCondition(field=field, asked=FieldTest.model_construct(one_of=tuple(values)))
    asked: dict[str, Any] = {test or "equal": values[0]}
    return FieldCondition(field=field, asked=FieldTest.model_construct(**asked))


def _boolean(name: str, text: str) -> bool:
    if text not in _BOOLEANS:
        raise UsageError(f"{name}: true or false")
    return _BOOLEANS[text]


def _integer(name: str, text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise UsageError(f"{name}: a whole number")
    return int(text)


def _number(name: str, text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise UsageError(f"{name}: a number")
    return float(text)


def _place(name: str, text: str) -> Any:
    try:
        found = loose_json(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str | int | float) for each in found):
        raise UsageError(f"{name}: the place that a page named, as JSON")
    return tuple(found)


def _text(_: str, text: str) -> str:
    return text


_SETTINGS: Final = {"limit": _integer, "after": _place, "order": _text, "descending": _boolean}

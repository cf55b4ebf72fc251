"""Fields of parsed JSON: each kind accepts its own values and names what is wrong with others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallystick.core.canonical_json import Json, fields, items, natural, shown, text
from tallystick.core.errors import MalformedError

Read = Callable[[Json, str], object]


def exactly_a_and_b(value: Json, what: str) -> object:
    return fields(value, ("a", "b"), what)


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (exactly_a_and_b, {"b": 1, "a": None}, {"a": None, "b": 1}),
        (items, [], []),
        (text, "", ""),
        (natural, 0, 0),
        (natural, 2**53 - 1, 2**53 - 1),
    ],
)
def test_a_value_of_its_kind_is_read(read: Read, value: Json, found: object) -> None:
    assert read(value, "here") == found


@pytest.mark.parametrize(
    ("read", "value", "problem"),
    [
        (exactly_a_and_b, [], "here: list of 0 is no object"),
        (exactly_a_and_b, {"a": 1}, "here: lacks 'b'"),
        (exactly_a_and_b, {"a": 1, "b": 2, "c": 3}, "here: has an unknown field 'c'"),
        (items, {"a": 1}, "here: dict of 1 is no list"),
        (text, 7, "here: 7 is no string"),
        (natural, True, "here: True is no natural number"),
        (natural, -1, "here: -1 is no natural number"),
        (natural, 2**53, f"here: {2**53} is no natural number"),
        (natural, 1.0, "here: 1.0 is no natural number"),
    ],
)
def test_any_other_value_is_refused_with_its_place(read: Read, value: Json, problem: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read(value, "here")
    assert str(caught.value) == problem


def test_a_value_is_shown_on_one_short_line_of_ascii() -> None:
    assert shown("ä\n") == "'\\xe4\\n'"
    assert len(shown("x" * 1000)) == 80

"""The depth of a JSON text is told without recursion, and is what a parser would meet."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tallystick.core.canonical_json import DEPTH_MAX, loose_json, nesting

TEXTS = st.text(alphabet='[]{}"\\ab\n\u00e9')
VALUES = st.recursive(
    st.none() | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES)
def test_nesting_is_the_depth_of_what_is_parsed(value: Any) -> None:
    assert nesting(json.dumps(value).encode()) == depth(value)
    assert nesting(json.dumps(value, ensure_ascii=False, indent=1).encode()) == depth(value)


@given(st.binary())
def test_nesting_of_anything_is_at_most_its_opening_brackets(data: bytes) -> None:
    assert 0 <= nesting(data) <= data.count(b"[") + data.count(b"{")


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (b"[" * 1_000_000, 1_000_000),
        (b'{"a":[' * 300_000, 600_000),
        (b"[]" * 300_000, 1),
        (b"]" * 300_000 + b"[", 0),
        (b'"' + b'\\"' * 1_000_000, 0),
        (b'"' + b"[" * 1_000_000, 0),
        (b'"\\', 0),
        (b"", 0),
    ],
    ids=[
        "lists",
        "objects",
        "side by side",
        "closing first",
        "escaped quotes",
        "an open string",
        "a backslash",
        "empty",
    ],
)
def test_a_hostile_text_costs_no_more_than_its_length(data: bytes, most: int) -> None:
    assert nesting(data) == most


@pytest.mark.parametrize("kind", [str, bytes])
def test_what_any_program_writes_is_read_unless_it_is_nested_too_deeply(kind: type) -> None:
    def text(depth: int) -> Any:
        written = "[" * depth + "]" * depth
        return written if kind is str else written.encode()

    assert depth(loose_json(text(DEPTH_MAX))) == DEPTH_MAX
    for deep in (DEPTH_MAX + 1, 1_000_000):
        with pytest.raises(ValueError, match="nested deeper than 64"):
            loose_json(text(deep))
    assert loose_json(b' {"a": 1.50, "a": "[["} ', parse_float=str) == {"a": "[["}

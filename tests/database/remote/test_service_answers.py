"""A service that lies about its pages and numbers: whoever asks it is told, and comes to an end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.core.errors import MalformedError
from tallystick.database.query import Page, RowQuery, page_json
from tallystick.database.remote import ServiceAnswers
from tallystick.database.rows import NOUNS, RecordRow

ROWS = tuple(RecordRow("digits", number, "step", "00") for number in (1, 2))
ASKED = RowQuery(noun="records", limit=2, after=(1, 0))


def says(monkeypatch: pytest.MonkeyPatch, value: Any) -> ServiceAnswers:
    """The answers of a service that says `value` to everything."""
    answers = ServiceAnswers("http://127.0.0.1:9")
    monkeypatch.setattr(answers._service, "post", lambda *_: json.dumps(value).encode())
    return answers


def page(rows: tuple[RecordRow, ...], after: Any) -> dict[str, Any]:
    return page_json(NOUNS["records"], Page(rows, after))


@pytest.mark.parametrize(
    ("rows", "after"),
    [
        *((ROWS, (1, 0)), (ROWS, (0, 2)), (ROWS, (1, 7)), (ROWS, (1,)), (ROWS, (1, "x"))),
        *((ROWS[1:], (1, 2)), ((), (1, 2)), (ROWS * 2, None)),
    ],
)
def test_pages_that_may_never_end_are_refused(
    monkeypatch: pytest.MonkeyPatch, rows: tuple[RecordRow, ...], after: Any
) -> None:
    with pytest.raises(MalformedError, match="more rows than asked for, or no end"):
        says(monkeypatch, page(rows, after)).page(ASKED)


def test_pages_that_lead_on_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows, after in ((ROWS, (1, 2)), (ROWS, (2, 2)), (ROWS, None), (ROWS[:1], None)):
        assert says(monkeypatch, page(rows, after)).page(ASKED) == Page(rows, after)
    backwards = ASKED.model_copy(update={"descending": True, "after": (1, 3)})
    assert says(monkeypatch, page(ROWS, (1, 2))).page(backwards).after == (1, 2)


@pytest.mark.parametrize("value", [-1, 10**400, 1.5, True, None])
def test_counts_and_totals_are_numbers(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    asked = says(monkeypatch, {"count": value, "total": value})
    with pytest.raises(MalformedError):
        asked.count(ASKED)
    assert says(monkeypatch, {"count": 3}).count(ASKED) == 3
    assert says(monkeypatch, {"total": "inf"}).total(ASKED, "number") == float("inf")
    if not isinstance(value, float) and value != -1:
        with pytest.raises(MalformedError):
            asked.total(ASKED, "number")

"""The answers of a service: what makes `tallystick.open("https://…")` the same as a database here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tallystick.errors import MalformedError, UsageError
from tallystick.http.client import RequestLimits
from tallystick.indexing.replayable import Discovery
from tallystick.remote.connection import ServiceConnection, in_url
from tallystick.remote.fetching import fetch_segment
from tallystick.store.database.query import Page
from tallystick.store.database.row_query import INTEGER_END, PAGE_MAX, RowQuery
from tallystick.store.database.row_text import question_text, read_json, read_number, read_page

PLACE: Final = "place"


class ServiceAnswers:
    """Answers questions by asking the service at `url`.

    The rows are what the service says: only proofs and replays show what happened.
    """

    def __init__(self, url: str, token: str | None = None, effort: RequestLimits | None = None) -> None:
        self._service = ServiceConnection(url, token, effort)

    def page(self, question: RowQuery) -> Page[Any]:
        """The rows that a question finds, `question.limit` of them at most."""
        question.check()
        answer = self._service.post("/v1/query", question_text(question))
        found = read_page(question.asked_noun, answer, f"{self._service.url}: the answer")
        if len(found.rows) > (question.limit or PAGE_MAX) or not _ends(question, found):
            raise MalformedError(f"{self._service.url}: the answer has more rows than asked for, or no end")
        if question.noun != "runs":
            return found
        return Page(tuple(replace(row, place=f"{self._service.url}{row.place}") for row in found.rows), found.after)

    def count(self, question: RowQuery) -> int:
        """How many rows a question finds in all."""
        question.check()
        what = f"{self._service.url}: the answer"
        found = read_json(self._service.post("/v1/count", question_text(question)), what)
        count = found.get("count") if isinstance(found, dict) else None
        if type(count) is not int or not 0 <= count < INTEGER_END:
            raise MalformedError(f"{what}: no count")
        return count

    def total(self, question: RowQuery, field: str) -> float:
        """The sum of a field over the rows that a question finds; raises `UsageError` where it is no number."""
        question.check_total(field)
        what = f"{self._service.url}: the answer"
        found = read_json(self._service.post(f"/v1/total?field={quote(field)}", question_text(question)), what)
        return read_number(found.get("total") if isinstance(found, dict) else None, f"{what}: the total")

    def discover(self, run: str) -> Discovery:
        """What of a run can be replayed, as the service says."""
        path = f"/v1/runs/{in_url(run)}/discovery"
        return Discovery.from_json(self._service.get(path), f"{self._service.url}{path}")

    def fetch_segment(self, run: str, start: int, end: int, folder: Path) -> None:
        """Copy what a replay from anchor `start` to anchor `end` needs into `folder`."""
        fetch_segment(self._service, run, start, end, folder)

    def close(self) -> None:
        """Close the connection."""
        self._service.close()


def _ends(question: RowQuery, found: Page[Any]) -> bool:
    """Whether a page is the last, or full and leads behind its last row: else its pages might never end."""
    if found.after is None:
        return True
    try:
        question.model_copy(update={"after": found.after}).check()
    except UsageError:
        return False
    is_further = question.after is None or (found.after < question.after) is question.descending
    if len(found.rows) < (question.limit or PAGE_MAX) or found.after == question.after or not is_further:
        return False
    last, place = found.rows[-1], zip(question.columns_of_order(), found.after, strict=True)
    return all(getattr(last, name, value) == value for name, value in place)  # numbers of rows are not shown

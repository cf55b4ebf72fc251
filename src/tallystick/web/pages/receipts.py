"""Receipts of answers: the streams of providers, and one stream with what was checked of it, over its length."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.store.database.query import Query
from tallystick.store.database.rows import ReceiptRow
from tallystick.web.pages.asked import PageQuestion, place_text

PAGE: Final = 60
PARTS: Final = 32
"""Parts of a stream in which receipts are counted by their verdict."""
VERDICTS: Final = ("accepted", "rejected", "inconclusive")
ASKED: Final = ("", *VERDICTS, "open")


def receipts_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """The streams, newest first, each with its receipts by verdict."""
    page = database.about("streams").newest_first().page(asked.after, PAGE)
    return {
        "streams": [
            asdict(stream) | {"verdicts": by_verdict(database.receipts.where(stream=stream.name), stream.receipts)}
            for stream in page.rows
        ],
        "after": place_text(page.after),
    }


def stream_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """One stream: receipts by verdict in all and over its length, and a page of them."""
    stream = database.about("streams").where(name=asked.text("name")).one()
    receipts = database.receipts.where(stream=stream.name)
    verdict = asked.one_of("verdict", ASKED)
    if verdict:
        page = receipts.where(verdict=None if verdict == "open" else verdict).page(asked.after, PAGE)
    else:
        page = receipts.page(asked.after, PAGE)
    return {
        "stream": asdict(stream),
        "verdict": verdict,
        "verdicts": by_verdict(receipts, stream.receipts),
        "pieces": _parts(receipts, stream.receipts),
        "receipts": [asdict(each) for each in page.rows],
        "after": place_text(page.after),
    }


def by_verdict(receipts: Query[ReceiptRow], count: int) -> dict[str, int]:
    """How many receipts have each verdict; those that nobody has checked are open."""
    found = {verdict: receipts.where(verdict=verdict).count() for verdict in VERDICTS}
    return {**found, "open": count - sum(found.values())}


def _parts(receipts: Query[ReceiptRow], count: int) -> list[dict[str, Any]]:
    parts = min(PARTS, count)
    edges = [count * index // parts for index in range(parts + 1)] if parts else []
    return [
        {"first": a, "last": b - 1, **by_verdict(receipts.where(number=range(a, b)), b - a)}
        for a, b in itertools.pairwise(edges)
    ]

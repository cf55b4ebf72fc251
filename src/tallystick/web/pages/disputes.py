"""Disputes: a list, and one that is replayed move by move, down to the operator."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.commitments.encoding import parse
from tallystick.store.database.rows import MoveRow
from tallystick.web.pages.asked import PageQuestion, place_text

PAGE: Final = 60
MOVES: Final = 1_000
SETTLED: Final = "settled"


def disputes_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """The disputes, newest first."""
    page = database.disputes.newest_first().page(asked.after, PAGE)
    return {
        "total": database.disputes.count(),
        "disputes": [asdict(each) for each in page.rows],
        "after": place_text(page.after),
    }


def dispute_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """One dispute after a number of moves, by default after all: what was left then, and the move that led there."""
    dispute = database.disputes.where(name=asked.text("name")).one()
    moves = list(database.about("moves").where(dispute=dispute.name).first(MOVES))
    shown = min(asked.number("move", len(moves)), len(moves))
    return {
        "dispute": asdict(dispute),
        "is_open": dispute.phase != SETTLED,
        "shown": shown,
        "moves": [_line(move) for move in moves],
        "body": _body(moves[shown - 1]) if shown else None,
        "runs": [run.name for run in database.runs.where(transcript=dispute.root).first(PAGE)],
    }


def _line(move: MoveRow) -> dict[str, Any]:
    """A move without its body, which can be long."""
    return {name: value for name, value in asdict(move).items() if name != "body"}


def _body(move: MoveRow) -> str:
    return json.dumps(parse(move.body.encode(), "move"), indent=2)

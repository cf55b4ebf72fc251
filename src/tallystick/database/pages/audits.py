"""Audits, receipts and disputes: lists, and what one of each found."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tallystick.core.canonical_json import parse
from tallystick.database.pages.addresses import PageQuestion, place_text
from tallystick.database.query import DatabaseQueries, Query
from tallystick.database.rows import AuditRow, MoveRow, ReceiptRow

# Audits: a list, and one report with what it found and what it could not; and the claim that audits are of.

PAGE: Final = 60
SEGMENTS: Final = 1_000
OUTCOMES: Final = ("", "accepted", "rejected", "inconclusive")
OBJECTIONS: Final = 20
"""Disagreements that stand before everything else; a page of all of them follows."""
SECTIONS: Final = (
    ("unavailable", "could not check"),
    ("checked", "checked"),
    ("not_checked", "not checked"),
    ("assumptions", "assumed"),
)
BODY_MAX: Final = 256 << 20


def audits_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """The audits, newest first, and those with one verdict where that is asked."""
    outcome = asked.one_of("outcome", OUTCOMES)
    found = database.audits.newest_first()
    page = (found.where(outcome=outcome) if outcome else found).page(asked.after, PAGE)
    return {
        "outcome": outcome,
        "counts": {name: database.audits.where(outcome=name).count() for name in OUTCOMES if name},
        "audits": [audit_line(audit) for audit in page.rows],
        "after": place_text(page.after),
    }


def audit_line(audit: AuditRow) -> dict[str, Any]:
    """An audit in a list."""
    names = ("digest", "kind", "run", "claim", "outcome", "sentence", "made", "steps", "replayed_steps", "seconds")
    return {name: getattr(audit, name) for name in names}


def audit_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """One report: its sentence, the objections that decided, its segments, and a page of its findings."""
    audit = database.audits.where(digest=asked.text("digest")).one()
    findings = database.findings.where(audit=audit.digest)
    only = asked.one_of("only", ("all", "objections"))
    objections = findings.where(agrees=False)
    page = (objections if only == "objections" else findings).page(asked.after, PAGE)
    report = parse(audit.body.encode(), "report", bytes_max=BODY_MAX)
    decisive = objections.where(advisory=False)
    segments = database.about("audited_segments").where(audit=audit.digest)
    return {
        "audit": audit_line(audit),
        "nonce": audit.nonce,
        "mode": audit.mode,
        "command": _text(report, "command"),
        "sections": [{"title": title, "lines": _lines(report, name)} for name, title in SECTIONS],
        "decisive": [asdict(each) for each in decisive.first(OBJECTIONS)],
        "decisive_in_all": decisive.count(),
        "segments": [asdict(each) for each in segments.first(SEGMENTS)],
        "segments_in_all": segments.count(),
        "only": only,
        "findings_in_all": findings.count(),
        "objections_in_all": objections.count(),
        "findings": [asdict(each) for each in page.rows],
        "after": place_text(page.after),
    }


def claim_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """One claim as it was stated, the runs that hold it, its audits, and disputes about its transcript."""
    digest = asked.text("digest")
    claims = database.claims.where(digest=digest)
    stated = claims.page(size=1).rows or (claims.one(),)
    runs = list(database.runs.where(claim=digest).first(PAGE))
    roots = sorted({run.transcript for run in runs if run.transcript is not None})
    return {
        "digest": digest,
        "body": json.dumps(parse(stated[0].body.encode(), "claim"), indent=2),
        "runs": [{"name": run.name, "status": run.status, "steps": run.steps} for run in runs],
        "audits": [audit_line(audit) for audit in database.audits.where(claim=digest).newest_first().first(PAGE)],
        "disputes": [asdict(each) for each in database.disputes.where(root=roots).first(PAGE)] if roots else [],
    }


def _lines(report: object, name: str) -> list[str]:
    found = report.get(name) if isinstance(report, Mapping) else None
    return [str(each) for each in found] if isinstance(found, list) else []


def _text(report: object, name: str) -> str | None:
    found = report.get(name) if isinstance(report, Mapping) else None
    return found if isinstance(found, str) else None


# Receipts of answers: the streams of providers, and one stream with what was checked of it, over its length.

PARTS: Final = 32
"""Parts of a stream in which receipts are counted by their verdict."""
VERDICTS: Final = ("accepted", "rejected", "inconclusive")
ASKED: Final = ("", *VERDICTS, "open")


def receipts_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """The streams, newest first, each with its receipts by verdict."""
    page = database.about("streams").newest_first().page(asked.after, PAGE)
    return {
        "streams": [
            asdict(stream) | {"verdicts": by_verdict(database.receipts.where(stream=stream.name), stream.receipts)}
            for stream in page.rows
        ],
        "after": place_text(page.after),
    }


def stream_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
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


# Disputes: a list, and one that is replayed move by move, down to the operator.

MOVES: Final = 1_000
SETTLED: Final = "settled"


def disputes_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """The disputes, newest first."""
    page = database.disputes.newest_first().page(asked.after, PAGE)
    return {
        "total": database.disputes.count(),
        "disputes": [asdict(each) for each in page.rows],
        "after": place_text(page.after),
    }


def dispute_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
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

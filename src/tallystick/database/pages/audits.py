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
from tallystick.database.rows import AuditRow, ReceiptRow

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
    audits = database.audits.newest_first()
    page = (audits.where(outcome=outcome) if outcome else audits).page(asked.after, PAGE)
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
    body = parse(audit.body.encode(), "report", bytes_max=BODY_MAX)
    report: Mapping[str, Any] = body if isinstance(body, dict) else {}
    command = report.get("command")
    decisive = objections.where(advisory=False)
    segments = database.about("audited_segments").where(audit=audit.digest)
    return {
        "audit": audit_line(audit),
        "nonce": audit.nonce,
        "mode": audit.mode,
        "command": command if isinstance(command, str) else None,
        "sections": [{"title": title, "lines": _lines(report.get(name))} for name, title in SECTIONS],
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


def _lines(section: object) -> list[str]:
    return [str(line) for line in section] if isinstance(section, list) else []


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
    chosen = receipts.where(verdict=None if verdict == "open" else verdict) if verdict else receipts
    page = chosen.page(asked.after, PAGE)
    count, parts = stream.receipts, min(PARTS, stream.receipts)
    edges = [count * index // parts for index in range(parts + 1)] if parts else []
    pieces = [
        {"first": a, "last": b - 1, **by_verdict(receipts.where(number=range(a, b)), b - a)}
        for a, b in itertools.pairwise(edges)
    ]
    return {
        "stream": asdict(stream),
        "verdict": verdict,
        "verdicts": by_verdict(receipts, stream.receipts),
        "pieces": pieces,
        "receipts": [asdict(each) for each in page.rows],
        "after": place_text(page.after),
    }


def by_verdict(receipts: Query[ReceiptRow], count: int) -> dict[str, int]:
    """How many receipts have each verdict; those that nobody has checked are open."""
    counts = {verdict: receipts.where(verdict=verdict).count() for verdict in VERDICTS}
    return {**counts, "open": count - sum(counts.values())}


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
        # A body can be long: only the one of the move that is shown goes along.
        "moves": [{name: value for name, value in asdict(move).items() if name != "body"} for move in moves],
        "body": json.dumps(parse(moves[shown - 1].body.encode(), "move"), indent=2) if shown else None,
        "runs": [run.name for run in database.runs.where(transcript=dispute.root).first(PAGE)],
    }

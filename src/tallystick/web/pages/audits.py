"""Audits: a list, and one report with what it found and what it could not; and the claim that audits are of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.commitments.encoding import parse
from tallystick.store.database.rows import AuditRow
from tallystick.web.pages.asked import PageQuestion, place_text

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


def audits_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
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


def audit_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
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


def claim_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
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

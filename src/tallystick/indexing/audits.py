"""Reads the reports of audits and of checks of receipts, as `--json` prints them, into the database.

A report is the verifier's own. It is named by the digest of its canonical bytes, and kept whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tallystick.commitments.digests import digest, digest_from
from tallystick.commitments.encoding import Json, encode, parse
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError
from tallystick.indexing.audit_report import AuditReport, ReportedReceipt
from tallystick.indexing.log_reading import LogPosition
from tallystick.indexing.sources import IN_DATABASE, source_of
from tallystick.store.database.bulk import inserted
from tallystick.store.database.schema import AUDIT, AUDITED_SEGMENT, FINDING, RECEIPT_VERDICT, RUN, SOURCE
from tallystick.store.database.workload_database import WorkloadDatabase

REPORT_BYTES_MAX: Final = 256 << 20
_STEP: Final = re.compile(r"\bstep ([0-9]{1,15})\b")


def add_audit_file(database: WorkloadDatabase, path: Path) -> str:
    """Read the report in a file; returns the digest by which the database names it. Raises what `add_audit` raises."""
    return add_audit(database, _read(path), str(path.absolute()))


def add_audit(
    database: WorkloadDatabase, report: Mapping[str, Json], place: str | None = None, run: Path | None = None
) -> str:
    """Add the report of an audit, once; returns the digest by which the database names it.

    `run` is the directory that was audited. Without it, the report belongs to the run that has its claim, if exactly
    one has: a forged directory may hold the claim of an honest one.

    Raises `MalformedError` where it is not the report of an audit of a run or of a check of receipts.
    """
    kind = _kind(report)
    read = AuditReport.from_json(dict(report), "report")
    body = encode(dict(report))
    name = digest("report", body)
    with database.writing("audits") as connection:
        if connection.execute(sa.select(AUDIT.c.id).where(AUDIT.c.digest == name)).first() is not None:
            return name
        source = source_of(connection, "audit", place or f"{IN_DATABASE}{name}", name)
        # Anybody can open operators in a prover's name, so of these only what was accepted is of the claim.
        claim = None if kind == "operators" and read.verdict != "accepted" else read.claim
        of = _run(connection, claim, run)
        facts = _facts(read) | {"claim": claim, "kind": kind, "body": body.decode()}
        number = inserted(connection, AUDIT, digest=name, source=source, run=of, **facts)
        _insert(connection, AUDITED_SEGMENT, _segments(number, read))
        _insert(connection, FINDING, _findings(number, read))
        _insert(connection, RECEIPT_VERDICT, _receipts(number, read))
    return name


def _read(path: Path) -> dict[str, Json]:
    data = read_document(path, REPORT_BYTES_MAX)
    found = parse(data, path.name, bytes_max=REPORT_BYTES_MAX)
    if not isinstance(found, dict):
        raise MalformedError(f"{path.name}: no report of an audit")
    return found


def _run(connection: sa.Connection, claim: str | None, path: Path | None) -> int | None:
    """The number of the run that was audited; `None` where it cannot be known."""
    if path is None and claim is None:
        return None
    known = RUN.c.claim == claim if path is None else SOURCE.c.place == str(path.absolute())
    columns = (RUN.c.id, RUN.c.transcript, RUN.c.bytes_read, RUN.c.records, RUN.c.frontier)
    found = connection.execute(sa.select(*columns).join(SOURCE).where(SOURCE.c.kind == "run", known)).all()
    runs = [row.id for row in found if path is not None or _holds_what_it_claims(row)]
    return runs[0] if len(runs) == 1 else None


def _holds_what_it_claims(run: Any) -> bool:
    """Whether the records of a run are those of its claim: the file of a claim can be copied beside any records."""
    frontier = LogPosition.of(run.bytes_read, run.records, run.frontier).frontier
    return bool(digest_from(frontier.root()) == run.transcript)


def _kind(report: Mapping[str, Json]) -> str:
    if not isinstance(report.get("verdict"), str) or not isinstance(report.get("findings"), list):
        raise MalformedError(
            "no report of an audit: it has no verdict and findings, as `tally audit --json` prints them"
        )
    if "receipt" in report or "reports" in report:
        return "receipts"
    if "segments" in report:
        return "training"
    return "operators" if "operators" in report else "inference"


def _facts(report: AuditReport) -> dict[str, Any]:
    return {
        "outcome": report.verdict,
        "sentence": report.sentence or "",
        "mode": None if report.policy is None else report.policy.mode,
        "nonce": report.nonce,
        "steps": report.steps,
        "replayed_steps": report.replayed_steps,
        "seconds": report.seconds,
        "made": report.date,
    }


def _segments(audit: int, report: AuditReport) -> list[dict[str, Any]]:
    found = {each.start: each for each in report.segments}
    return [
        {
            "audit": audit,
            "first_step": each.start + 1,
            "last_step": each.to,
            "outcome": each.outcome,
            "seconds": each.seconds,
        }
        for each in found.values()
    ]


def _findings(audit: int, report: AuditReport) -> list[dict[str, Any]]:
    return [
        {
            "audit": audit,
            "number": number,
            "check": each.check,
            "place": each.where,
            "step": _step(each.where),
            "distance": _number(each.distance),
            "allowed": _number(each.allowed),
            "agrees": each.agrees is True,
            "advisory": each.advisory is True,
            "detail": each.detail,
        }
        for number, each in enumerate(report.findings)
    ]


def _receipts(audit: int, report: AuditReport) -> list[dict[str, Any]]:
    checked: Iterable[AuditReport | ReportedReceipt] = report.reports or (report,)
    return [
        {
            "audit": audit,
            "receipt": each.receipt,
            "outcome": each.verdict,
            "sentence": each.sentence or "",
            "rung": None if each.rung is None else str(each.rung),
        }
        for each in checked
        if each.receipt is not None
    ]


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(sa.insert(table), rows)


def _step(place: str) -> int | None:
    found = _STEP.search(place)
    return int(found[1]) if found else None


def _number(value: float | str | None) -> float | None:
    """A finite number; a report writes the others as text."""
    return None if isinstance(value, str) else value

"""Reads the reports of audits and of checks of receipts, and receipts themselves, into the database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any, Final, Literal

import sqlalchemy as sa
from pydantic import ConfigDict, Field

from tallystick.core.canonical_json import Json, encode, parse
from tallystick.core.digests import digest, digest_from
from tallystick.core.documents import Count, Document, Number
from tallystick.core.errors import MalformedError
from tallystick.core.files import read_document
from tallystick.database.bulk import insert_many, inserted
from tallystick.database.indexing.sources import (
    IN_DATABASE,
    LogLine,
    LogPosition,
    position_of,
    read_in_batches,
    source_of,
)
from tallystick.database.schema import AUDIT, AUDITED_SEGMENT, FINDING, RECEIPT, RECEIPT_VERDICT, RUN, SOURCE, STREAM
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.receipt import RECEIPT_BYTES_MAX, SignedReceipt

# What the database reads of a report that `--json` printed; a report holds more, which is kept whole.

VerdictName = Literal["accepted", "rejected", "inconclusive"]


class ReportPart(Document):
    """A part of a report: the fields that are read have their types, and others may stand beside them."""

    model_config = ConfigDict(extra="ignore")


class ReportedSegment(ReportPart):
    """A segment that was replayed, from anchor `start` to anchor `to`."""

    start: Count = Field(alias="from")
    to: Count
    state: str | None = None
    trajectory: str | None = None
    seconds: float | None = None

    @property
    def outcome(self) -> str:
        """`agrees`, or what was found of the state and of the way there."""
        words = {self.state, self.trajectory} - {None}
        return "agrees" if words == {"agrees"} else ", ".join(sorted(str(each) for each in words - {"agrees"}))


class ReportedFinding(ReportPart):
    """One comparison."""

    check: str = ""
    where: str = ""
    distance: Number | None = None
    allowed: Number | None = None
    agrees: bool | None = None
    advisory: bool | None = None
    detail: str = ""


class ReportedReceipt(ReportPart):
    """What was found of one receipt."""

    receipt: str
    verdict: VerdictName
    sentence: str | None = None
    rung: str | int | None = None


class ReportedPolicy(ReportPart):
    """How was compared."""

    mode: str | None = None


class AuditReport(ReportPart):
    """The report of an audit, of a judgement of operators, or of a check of receipts."""

    verdict: VerdictName
    findings: tuple[ReportedFinding, ...]
    claim: str | None = None
    sentence: str | None = None
    policy: ReportedPolicy | None = None
    nonce: str | None = None
    steps: Count | None = None
    replayed_steps: Count | None = None
    reading_seconds: float | None = None
    replay_seconds: float | None = None
    date: str | None = None
    segments: tuple[ReportedSegment, ...] = ()
    reports: tuple[ReportedReceipt, ...] = ()
    receipt: str | None = None
    rung: str | int | None = None

    @property
    def seconds(self) -> float | None:
        """The time that it took, where it was noted."""
        noted = [each for each in (self.reading_seconds, self.replay_seconds) if each is not None]
        return sum(noted) if noted else None


# Reads the reports of audits and of checks of receipts, as `--json` prints them, into the database.
#
# A report is the verifier's own. It is named by the digest of its canonical bytes, and kept whole.

REPORT_BYTES_MAX: Final = 256 << 20
_STEP: Final = re.compile(r"\bstep ([0-9]{1,15})\b")


def add_audit_file(database: WorkloadDatabase, path: Path) -> str:
    """Read the report in a file; returns the digest by which the database names it. Raises what `add_audit` raises."""
    report = parse(read_document(path, REPORT_BYTES_MAX), path.name, bytes_max=REPORT_BYTES_MAX)
    if not isinstance(report, dict):
        raise MalformedError(f"{path.name}: no report of an audit")
    return add_audit(database, report, str(path.absolute()))


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
        number = inserted(
            connection,
            AUDIT,
            digest=name,
            source=source,
            run=_run(connection, claim, run),
            claim=claim,
            kind=kind,
            body=body.decode(),
            outcome=read.verdict,
            sentence=read.sentence or "",
            mode=None if read.policy is None else read.policy.mode,
            nonce=read.nonce,
            steps=read.steps,
            replayed_steps=read.replayed_steps,
            seconds=read.seconds,
            made=read.date,
        )
        insert_many(connection, AUDITED_SEGMENT, ((number, *row) for row in _segments(read)))
        insert_many(connection, FINDING, ((number, *row) for row in _findings(read)))
        insert_many(connection, RECEIPT_VERDICT, _receipts(number, read))
    return name


def _segments(report: AuditReport) -> Iterator[tuple[Any, ...]]:
    """A segment for each anchor that replays began at: the last one that the report names."""
    for segment in {each.start: each for each in report.segments}.values():
        yield segment.start + 1, segment.to, segment.outcome, segment.seconds


def _findings(report: AuditReport) -> Iterator[tuple[Any, ...]]:
    for number, finding in enumerate(report.findings):
        step = _STEP.search(finding.where)
        # A report writes numbers that are not finite as text.
        distances = (None if isinstance(value, str) else value for value in (finding.distance, finding.allowed))
        yield (
            number,
            finding.check,
            finding.where,
            int(step[1]) if step else None,
            *distances,
            finding.agrees is True,
            finding.advisory is True,
            finding.detail,
        )


def _receipts(audit: int, report: AuditReport) -> Iterator[tuple[Any, ...]]:
    checked: Iterable[AuditReport | ReportedReceipt] = report.reports or (report,)
    for check in checked:
        if check.receipt is not None:
            rung = None if check.rung is None else str(check.rung)
            yield check.receipt, audit, check.verdict, check.sentence or "", rung


def _run(connection: sa.Connection, claim: str | None, path: Path | None) -> int | None:
    """The number of the run that was audited; `None` where it cannot be known."""
    if path is None and claim is None:
        return None
    known = RUN.c.claim == claim if path is None else SOURCE.c.place == str(path.absolute())
    columns = (RUN.c.id, RUN.c.transcript, RUN.c.bytes_read, RUN.c.records, RUN.c.frontier)
    candidates = connection.execute(sa.select(*columns).join(SOURCE).where(SOURCE.c.kind == "run", known)).all()
    runs = [row.id for row in candidates if path is not None or _holds_what_it_claims(row)]
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


# Reads the receipts of a provider into the database, in the order in which they were issued.

BATCH: Final = 5000


def add_receipts(database: WorkloadDatabase, path: Path, name: str | None = None) -> str:
    """Read a file of signed receipts, or what is new of it; returns the name of the stream.

    Signatures are not checked here: `tally verify-response` does that.

    Raises:
        MalformedError: a line is no receipt, or not the one that was read before.
        UnavailableError: there is no such file.
    """
    place = str(path.absolute())
    name = name or path.absolute().parent.name
    with database.writing(place) as connection:
        source = source_of(connection, "receipts", place, name)
        _, position = _position(connection, source)
    if position.lines and position_of(path, position.lines) != position:
        raise MalformedError(f"{path}: other receipts than in the database; `tally db forget {quote(name)}` first")

    def write(connection: sa.Connection, batch: list[LogLine]) -> None:
        _write(connection, path, _position(connection, source)[0], batch)

    def reached(connection: sa.Connection) -> LogPosition:
        return _position(connection, source)[1]

    read_in_batches(database, place, path, BATCH, reached, write, RECEIPT_BYTES_MAX)
    return name


def _position(connection: sa.Connection, source: int) -> tuple[int, LogPosition]:
    row = connection.execute(sa.select(STREAM).where(STREAM.c.source == source)).one_or_none()
    if row is not None:
        return int(row.id), LogPosition.of(row.bytes_read, row.receipts, row.frontier)
    return inserted(connection, STREAM, source=source, receipts=0, bytes_read=0, frontier=b""), LogPosition()


def _write(connection: sa.Connection, path: Path, stream: int, batch: list[LogLine]) -> None:
    rows = [_row(stream, each, path) for each in batch]
    insert_many(connection, RECEIPT, rows)
    behind = batch[-1].behind
    values = {"receipts": behind.lines, "bytes_read": behind.bytes_read, "frontier": behind.peaks, "key": rows[-1][3]}
    connection.execute(sa.update(STREAM).where(STREAM.c.id == stream).values(**values))


def _row(stream: int, line: LogLine, path: Path) -> tuple[Any, ...]:
    number = line.behind.lines - 1
    signed = SignedReceipt.from_bytes(line.line, f"{path.name}: line {number + 1}")
    receipt = signed.receipt
    engine = f"{receipt.engine.name} {receipt.engine.version}"
    named = (receipt.request.id, receipt.identity, receipt.model, engine, receipt.engine.environment)
    counts = (receipt.request.prompt.count, receipt.answer.tokens.count, receipt.answer.finish, len(line.line))
    sampler = receipt.sampler.to_bytes().decode()
    return (stream, number, receipt.sequence, signed.key, *named, sampler, *counts)

"""What the database reads of a report that `--json` printed; a report holds more, which is kept whole."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from tallystick.documents.document import Count, Document, Number

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
        found = {self.state, self.trajectory} - {None}
        return "agrees" if found == {"agrees"} else ", ".join(sorted(str(each) for each in found - {"agrees"}))


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

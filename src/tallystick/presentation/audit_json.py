"""The report of an audit as JSON values: what was found, and when, with which tools and on which stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.commitments.encoding import Json
from tallystick.presentation.confidence import CONFIDENCE
from tallystick.presentation.sentence import bad_fewer_than, sentence_of

if TYPE_CHECKING:
    from tallystick.audits.inference import InferenceReport
    from tallystick.audits.report import Report
    from tallystick.presentation.circumstances import Circumstances


def audit_json(report: Report | InferenceReport, made: Circumstances) -> dict[str, Json]:
    """The report as JSON values."""
    excluded: Json = {"confidence": CONFIDENCE, "bad_fewer_than": bad_fewer_than(report.verdict)}
    return {**report.to_json(), **made.to_json(), "sentence": sentence_of(report.verdict), "excluded": excluded}

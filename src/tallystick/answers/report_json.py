"""The report on a receipt as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.commitments.encoding import Json
from tallystick.judging.verdict import number

if TYPE_CHECKING:
    from tallystick.answers.report import ReceiptReport


def report_json(report: ReceiptReport) -> dict[str, Json]:
    """The report as JSON values."""
    return {
        **report.verdict.to_json(),
        "receipt": str(report.receipt),
        "model": str(report.model),
        "sequence": report.sequence,
        "tokens": report.tokens,
        "rung": report.rung,
        "answers": dict(report.answers),
        "power": [each.to_json() for each in report.power],
        "power_unknown": report.unmeasured,
        "costs": [
            {"check": check, "seconds": number(round(seconds, 6)), "bytes": report.bytes[check]}
            for check, seconds in report.seconds.items()
        ],
        "rungs": [
            {"rung": rung, "name": cost.check, "seconds": number(round(cost.seconds, 6)), "bytes": cost.bytes}
            for rung, cost in report.rung_costs.items()
        ],
    }

"""The overview: what there is, and how much of it audits have verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.store.database.rows import RunRow
from tallystick.web.pages.audits import audit_line
from tallystick.web.pages.coverage import StepSpan, joined, spans_of_all, steps_in
from tallystick.web.pages.runs import run_line

RUNS_SHOWN: Final = 12
AUDITS_SHOWN: Final = 8
TRACES: Final = 100
NANO: Final = 1e9


def overview(database: Database, _: object) -> dict[str, Any]:
    """What the database holds, newest first, and the share of the recorded steps that accepted audits cover."""
    runs, spans = list(database.runs), spans_of_all(database)
    return {
        "coverage": coverage(runs, spans),
        "device_time": device_time(database, spans),
        "nouns": _nouns(database, runs),
        "runs": [run_line(run, spans.get(run.name, ())) for run in runs[::-1][:RUNS_SHOWN]],
        "audits": [audit_line(audit) for audit in database.audits.newest_first().first(AUDITS_SHOWN)],
    }


def coverage(runs: list[RunRow], spans: Mapping[str, tuple[StepSpan, ...]]) -> dict[str, Any]:
    """How many of all recorded steps have been replayed in accepted and in rejected audits."""
    counts = {
        verdict: sum(steps_in(joined(spans.get(run.name, ()), verdict), run.steps) for run in runs)
        for verdict in ("accepted", "rejected")
    }
    return {"steps": sum(run.steps for run in runs), **counts}


def device_time(database: Database, spans: Mapping[str, tuple[StepSpan, ...]]) -> dict[str, float]:
    """The seconds for which devices worked in all traces, and those of steps that accepted audits cover."""
    worked = accepted = 0.0
    for trace in database.traces.first(TRACES):
        events = database.events.where(trace=trace.name)
        worked += events.total("duration_ns")
        for first, last in joined(spans.get(trace.run or "", ()), "accepted"):
            accepted += events.where(step=range(first, last + 1)).total("duration_ns")
    return {"worked": worked / NANO, "accepted": accepted / NANO}


def _nouns(database: Database, runs: list[RunRow]) -> list[dict[str, Any]]:
    """How much there is of each noun, and the page that shows it."""
    events = int(database.traces.total("events"))
    receipts = int(database.about("streams").total("receipts"))
    found = [
        ("runs", "runs", len(runs)),
        ("records", "runs", sum(run.records for run in runs)),
        ("graphs", "graphs", database.graphs.count()),
        ("events", "timelines", events),
        ("devices", "devices", database.devices.count()),
        ("audits", "audits", database.audits.count()),
        ("receipts", "receipts", receipts),
        ("disputes", "disputes", database.disputes.count()),
    ]
    return [{"name": name, "page": page, "count": number} for name, page, number in found if number]

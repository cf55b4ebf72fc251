"""Runs: a list with what was verified of each, and one run with its curves, anchors and audits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.errors import UsageError
from tallystick.store.database.query import Query, starts_with
from tallystick.store.database.rows import RunRow, StepRow
from tallystick.web.pages.asked import PageQuestion, place_text
from tallystick.web.pages.audits import audit_line
from tallystick.web.pages.coverage import StepSpan, joined, spans_of_all, spans_of_run, steps_in

PAGE: Final = 50
CURVE: Final = 800
"""A curve is drawn through so many steps at most, evenly apart."""
FINDINGS: Final = 2_000
ANCHORS: Final = 500


def runs_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """The runs, newest first, and those whose name begins as asked."""
    begins = asked.optional("begins")
    found = database.runs.newest_first()
    if begins is not None:
        found = found.where(name=starts_with(begins[:128]))
    page, spans = found.page(asked.after, PAGE), spans_of_all(database)
    return {
        "begins": begins,
        "total": database.runs.count(),
        "runs": [run_line(run, spans.get(run.name, ())) for run in page.rows],
        "after": place_text(page.after),
    }


def run_line(run: RunRow, spans: tuple[StepSpan, ...]) -> dict[str, Any]:
    """A run in a list: what it is, and how many of its steps were replayed with which verdict."""
    return {
        **{name: getattr(run, name) for name in ("name", "kind", "status", "title", "records", "steps", "seconds")},
        **verified(run, spans),
    }


def verified(run: RunRow, spans: tuple[StepSpan, ...]) -> dict[str, Any]:
    """The replayed steps of a run as counts and as ranges; where verdicts differ, rejected lies on top."""
    ranges = {verdict: joined(spans, verdict) for verdict in ("inconclusive", "accepted", "rejected")}
    return {
        "accepted": steps_in(ranges["accepted"], run.steps),
        "rejected": steps_in(ranges["rejected"], run.steps),
        "spans": [(first, last, verdict) for verdict, found in ranges.items() for first, last in found],
    }


def run_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """One run: its curves between two steps, its audits and what they found, its anchors and a page of its steps."""
    run = database.runs.where(name=asked.text("name")).one()
    first, last = asked.number("first", 1), asked.number("last", run.steps)
    if not 0 <= first <= max(last, 1):
        raise UsageError("first, last: the first step comes before the last one")
    steps = database.steps.where(run=run.name)
    page = steps.where(step=range(first, last + 1)).page(asked.after, PAGE)
    return {
        "run": asdict(run),
        "verified": verified(run, spans_of_run(database, run.name)),
        "first": first,
        "last": last,
        "curve": curve(steps, first, last),
        "anchors": _anchors(database, run, first, last),
        "audits": [audit_line(audit) for audit in database.audits.where(run=run.name).first(PAGE)],
        **drift(database, run.name, first, last),
        "graphs": [asdict(use) for use in database.about("graph_uses").where(run=run.name).first(PAGE)],
        "traces": [trace.name for trace in database.traces.where(run=run.name).first(PAGE)],
        "steps": [asdict(step) for step in page.rows],
        "after": place_text(page.after),
    }


def curve(steps: Query[StepRow], first: int, last: int) -> dict[str, Any]:
    """Loss, gradient norm and learning rate of steps that are evenly apart, the first and the last one included."""
    count = last - first + 1
    wanted: Any = range(first, last + 1)
    if count > CURVE:
        wanted = {first + round(index * (count - 1) / (CURVE - 1)) for index in range(CURVE)}
    rows = steps.where(step=wanted).page(size=CURVE).rows
    columns = ("step", "loss", "gradient_norm", "learning_rate")
    return {name: [getattr(row, name) for row in rows] for name in columns} | {"is_thinned": count > CURVE}


def drift(database: Database, run: str, first: int, last: int) -> dict[str, Any]:
    """What audits found at single steps: distances beside those allowed, and how many comparisons found none."""
    audits = database.audits.where(run=run)
    found = list(audits.about("findings").where(step=range(first, last + 1)).first(FINDINGS))
    names = ("step", "check", "distance", "allowed", "agrees")
    moved = [each for each in found if each.allowed or each.distance or not each.agrees]
    return {
        "drift": [{name: getattr(each, name) for name in names} for each in moved if each.distance is not None],
        "equal": len(found) - len(moved),
    }


def _anchors(database: Database, run: RunRow, first: int, last: int) -> dict[str, Any]:
    found = list(database.anchors.where(run=run.name, step=range(first - 1, last + 1)).first(ANCHORS))
    return {
        "total": database.anchors.where(run=run.name).count(),
        "steps": [anchor.step for anchor in found],
        "absent": [anchor.step for anchor in found if not anchor.present],
    }

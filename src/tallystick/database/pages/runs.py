"""The overview, runs and their steps: what was recorded, what audits covered, and what can be replayed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tallystick.core.canonical_json import loose_json
from tallystick.core.digests import leaf_hash
from tallystick.core.errors import TallyError, UsageError
from tallystick.database.pages.addresses import PageQuestion, place_text
from tallystick.database.pages.audits import audit_line
from tallystick.database.query import DatabaseQueries, Query, below, starts_with
from tallystick.database.rows import RunRow, StepRow
from tallystick.formats.store.log import line_at

# Which steps of a run audits have replayed, and with which verdict.

SEGMENTS_MAX: Final = 20_000
AGREES: Final = "agrees"


@dataclass(frozen=True)
class StepSpan:
    """The steps from `first` to `last`, and the verdict of whoever replayed them."""

    first: int
    last: int
    verdict: str


def replayed(database: DatabaseQueries, **of: str) -> dict[str, tuple[StepSpan, ...]]:
    """The replayed steps of every run by its name, or of the run that `of` names, by their first step.

    A part that agrees is accepted only where the whole audit was.
    """
    audits, segments = database.audits.where(**of), database.about("audited_segments").where(**of)
    outcomes = {audit.digest: audit.outcome for audit in audits.first(SEGMENTS_MAX)}
    spans: dict[str, list[StepSpan]] = {}
    for segment in segments.first(SEGMENTS_MAX):
        if segment.run is not None and segment.audit in outcomes:
            verdict = verdict_of(segment.outcome, outcomes[segment.audit])
            spans.setdefault(segment.run, []).append(StepSpan(segment.first_step, segment.last_step, verdict))
    return {run: tuple(sorted(own, key=lambda span: span.first)) for run, own in spans.items()}


def verdict_of(segment: str, audit: str) -> str:
    """The verdict on a replayed part, from what was found there and from the verdict on the whole."""
    return "inconclusive" if segment == AGREES and audit != "accepted" else audit


def joined(spans: Iterable[StepSpan], verdict: str) -> list[tuple[int, int]]:
    """The steps with a verdict, as ranges without overlap."""
    ranges: list[tuple[int, int]] = []
    for span in sorted((each for each in spans if each.verdict == verdict), key=lambda each: each.first):
        if ranges and span.first <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], span.last))
        else:
            ranges.append((span.first, span.last))
    return ranges


def steps_in(ranges: Iterable[tuple[int, int]], steps: int) -> int:
    """How many of the steps 1 to `steps` lie in ranges that do not overlap."""
    return sum(max(0, min(last, steps) - max(first, 1) + 1) for first, last in ranges)


# One step: its record, its batch, the tensors bound to it, who replayed it, and what can be replayed of it.

BINDINGS: Final = 500
AUDITS: Final = 100
BEHIND: Final = 1 << 62


def step_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """One step of a run."""
    run = database.runs.where(name=asked.text("run")).one()
    step = database.steps.where(run=run.name, step=asked.number("step", 1)).one()
    leaf = database.records.where(run=run.name, number=step.record).one().leaf
    return {
        "run": asdict(run),
        "step": asdict(step),
        "leaf": leaf,
        "record": _record(run, step, leaf),
        "bindings": [asdict(row) for row in database.bindings.where(run=run.name, step=step.step).first(BINDINGS)],
        "audits": _audits(database, step),
        "replay": replay_of(database, run, step),
    }


def replay_of(database: DatabaseQueries, run: RunRow, step: StepRow) -> dict[str, Any]:
    """From which anchor the step can be replayed, up to which state it can be compared, and what is missing for it."""
    anchors = database.anchors.where(run=run.name)
    before = list(anchors.where(step=below(step.step)).newest_first().first(1))
    behind = list(anchors.where(step=range(step.step, BEHIND)).first(1))
    missing = [f"anchor {each.step}: {each.file} was not there" for each in (*before, *behind) if not each.present]
    if not before:
        missing.append("no anchor comes before this step")
    if step.graph is None and run.graph is None:
        missing.append(step.no_graph or run.no_graph or "no graph was recorded: only the recipe says what the step did")
    return {
        "begins": before[0].step if before else None,
        "ends": behind[0].step if behind else None,
        "graph": step.graph or run.graph,
        "missing": missing,
    }


def _record(run: RunRow, step: StepRow, leaf: str) -> dict[str, Any]:
    """The record as it stands in the transcript; `problem` says why it does not stand here."""
    path = Path(run.place, "transcript.jsonl")
    try:
        line = line_at(path, step.record)
    except (OSError, TallyError) as error:
        return {"text": None, "problem": f"the transcript cannot be read: {error}"}
    if leaf_hash(line).hex() != leaf:
        return {"text": None, "problem": "the transcript holds another record than the database: `tally db check`"}
    return {"text": json.dumps(loose_json(line), indent=2, ensure_ascii=True), "problem": None}


def _audits(database: DatabaseQueries, step: StepRow) -> list[dict[str, Any]]:
    """The audits that replayed the step, and what each found at it."""
    audits = {audit.digest: audit for audit in database.audits.where(run=step.run).first(AUDITS)}
    segments = database.about("audited_segments").where(run=step.run, first_step=below(step.step + 1))
    replays = []
    for segment in segments.newest_first():
        if segment.last_step >= step.step and segment.audit in audits:
            audit = audits[segment.audit]
            findings = database.findings.where(audit=audit.digest, step=step.step).first(AUDITS)
            replays.append(
                {
                    "digest": audit.digest,
                    "verdict": verdict_of(segment.outcome, audit.outcome),
                    "outcome": segment.outcome,
                    "first": segment.first_step,
                    "last": segment.last_step,
                    "sentence": audit.sentence,
                    "findings": [asdict(finding) for finding in findings],
                }
            )
    return replays[:AUDITS]


# Runs: a list with what was verified of each, and one run with its curves, anchors and audits.

PAGE: Final = 50
CURVE: Final = 800
"""A curve is drawn through so many steps at most, evenly apart."""
FINDINGS: Final = 2_000
ANCHORS: Final = 500


def runs_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """The runs, newest first, and those whose name begins as asked."""
    begins = asked.optional("begins")
    runs = database.runs.newest_first()
    if begins is not None:
        runs = runs.where(name=starts_with(begins[:128]))
    page, spans = runs.page(asked.after, PAGE), replayed(database)
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
        "spans": [(first, last, verdict) for verdict, spans_of in ranges.items() for first, last in spans_of],
    }


def run_view(database: DatabaseQueries, asked: PageQuestion) -> dict[str, Any]:
    """One run: its curves between two steps, its audits and what they found, its anchors and a page of its steps."""
    run = database.runs.where(name=asked.text("name")).one()
    first, last = asked.number("first", 1), asked.number("last", run.steps)
    if not 0 <= first <= max(last, 1):
        raise UsageError("first, last: the first step comes before the last one")
    steps = database.steps.where(run=run.name)
    page = steps.where(step=range(first, last + 1)).page(asked.after, PAGE)
    anchors = database.anchors.where(run=run.name)
    shown = list(anchors.where(step=range(first - 1, last + 1)).first(ANCHORS))
    return {
        "run": asdict(run),
        "verified": verified(run, replayed(database, run=run.name).get(run.name, ())),
        "first": first,
        "last": last,
        "curve": curve(steps, first, last),
        "anchors": {
            "total": anchors.count(),
            "steps": [anchor.step for anchor in shown],
            "absent": [anchor.step for anchor in shown if not anchor.present],
        },
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


def drift(database: DatabaseQueries, run: str, first: int, last: int) -> dict[str, Any]:
    """What audits found at single steps: distances beside those allowed, and how many comparisons found none."""
    audits = database.audits.where(run=run)
    findings = list(audits.about("findings").where(step=range(first, last + 1)).first(FINDINGS))
    names = ("step", "check", "distance", "allowed", "agrees")
    moved = [finding for finding in findings if finding.allowed or finding.distance or not finding.agrees]
    return {
        "drift": [
            {name: getattr(finding, name) for name in names} for finding in moved if finding.distance is not None
        ],
        "equal": len(findings) - len(moved),
    }


# The overview: what there is, and how much of it audits have verified.

RUNS_SHOWN: Final = 12
AUDITS_SHOWN: Final = 8
TRACES: Final = 100
NANO: Final = 1e9


def overview(database: DatabaseQueries, _: object) -> dict[str, Any]:
    """What the database holds, newest first, and the share of the recorded steps that accepted audits cover."""
    runs, spans = list(database.runs), replayed(database)
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


def device_time(database: DatabaseQueries, spans: Mapping[str, tuple[StepSpan, ...]]) -> dict[str, float]:
    """The seconds for which devices worked in all traces, and those of steps that accepted audits cover."""
    worked = accepted = 0.0
    for trace in database.traces.first(TRACES):
        events = database.events.where(trace=trace.name)
        worked += events.total("duration_ns")
        for first, last in joined(spans.get(trace.run or "", ()), "accepted"):
            accepted += events.where(step=range(first, last + 1)).total("duration_ns")
    return {"worked": worked / NANO, "accepted": accepted / NANO}


def _nouns(database: DatabaseQueries, runs: list[RunRow]) -> list[dict[str, Any]]:
    """How much there is of each noun, and the page that shows it."""
    events = int(database.traces.total("events"))
    receipts = int(database.about("streams").total("receipts"))
    counts = [
        ("runs", "runs", len(runs)),
        ("records", "runs", sum(run.records for run in runs)),
        ("graphs", "graphs", database.graphs.count()),
        ("events", "timelines", events),
        ("devices", "devices", database.devices.count()),
        ("audits", "audits", database.audits.count()),
        ("receipts", "receipts", receipts),
        ("disputes", "disputes", database.disputes.count()),
    ]
    return [{"name": name, "page": page, "count": number} for name, page, number in counts if number]

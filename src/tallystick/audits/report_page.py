"""The report of an audit as text, as JSON, and as one self-contained page with its plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Final

from tallystick.audits.context import AuditContext
from tallystick.audits.report import Report, TrainingReport, claim_named
from tallystick.core.canonical_json import Json
from tallystick.core.lazy import require
from tallystick.core.svg import Chart
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.words import (
    CONFIDENCE,
    PERCENT,
    VerdictText,
    bad_fewer_than,
    describe,
    passed_line,
    printable,
    seconds_line,
    sentence_of,
    summarise_checks,
)

# The report of an audit as JSON values: what was found, and when, with which tools and on which stacks.


def audit_json(report: Report, made: AuditContext) -> dict[str, Json]:
    """The report as JSON values."""
    excluded: Json = {"confidence": CONFIDENCE, "bad_fewer_than": bad_fewer_than(report.verdict)}
    return {**report.to_json(), **made.to_json(), "sentence": sentence_of(report.verdict), "excluded": excluded}


# The report of an audit as text.

GRAPHS_SHOWN: Final = 8


def audit_text(report: Report, made: AuditContext) -> VerdictText:
    """What the report of an audit says in lines of text."""
    graph = f", graph {report.graph}" if report.graph else ""
    details = [*(_details(report) if isinstance(report, TrainingReport) else ()), *_other_stack(made)]
    seconds = seconds_of(report, made)
    repeat = (f"repeat: {made.command}",)
    return VerdictText(report.verdict, f"{claim_named(report.claim)}{graph}", (), repeat, tuple(details), seconds)


def seconds_of(report: Report, made: AuditContext) -> dict[str, float]:
    """How long each part of an audit took."""
    return {
        "start-up": made.startup_seconds,
        "reading and checking": report.reading_seconds,
        "replay": report.replay_seconds,
    }


def _details(report: TrainingReport) -> Iterator[str]:
    ratio = "an unknown share" if report.cost_ratio is None else f"{report.cost_ratio:.2f}"
    if report.segments:
        trajectories = sum(segment.trajectory_agrees for segment in report.segments)
        states = sum(segment.state_agrees for segment in report.segments)
        yield f"of {len(report.segments)} segments the trajectory agrees in {trajectories}, the state in {states}"
    if report.graphs:
        yield graphs_line(report)
    yield f"the audit took {ratio} of the training time"


def graphs_line(report: TrainingReport) -> str:
    """How many step graphs a run has, and how many steps each; empty if it has that of the spec alone."""
    named = [(root, count) for root, count in report.graphs if root is not None]
    without = sum(count for root, count in report.graphs if root is None)
    shown = [f"{_steps(count)} of {root}" for root, count in named[:GRAPHS_SHOWN]]
    more = [f"{_steps(sum(count for _, count in named[GRAPHS_SHOWN:]))} of others"] if named[GRAPHS_SHOWN:] else []
    none = [f"{_steps(without)} without a graph"] if without else []
    head = f"{len(named)} step graph{'s' * (len(named) != 1)}: "
    return head + ", ".join([*shown, *more, *none]) if report.graphs else ""


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _other_stack(made: AuditContext) -> Iterator[str]:
    """Every entry in which the stack here differs from the claimed one."""
    if made.claimed is not None and made.ours is not None:
        for name, (ours, theirs) in made.ours.differing(made.claimed).items():
            yield f"different stack: {name}: claimed {theirs}, here {ours}"


# The charts of an audit: recorded and replayed losses, their distance beside its limit, and what was not replayed.

SAMPLED_SHOWN: Final = 400
"""More marks than this would be one bar."""
AGREES, OBJECTED = "replayed, segment agrees", "replayed, segment objected to"
DISTANCE, LIMIT, BEYOND = "distance", "limit", "beyond the limit"
LEGEND: Final = {
    "recorded": "recorded",
    AGREES: "agrees",
    OBJECTED: "objected",
    DISTANCE: "agrees",
    LIMIT: "limit",
    BEYOND: "beyond",
    "sampled step": "sampled",
    "anchor": "upright",
    "not replayed": "unread",
}
"""What a kind of mark means, and its class in the style of the page."""


@dataclass(frozen=True)
class Panel:
    """A chart with its title, and the class of each name in its legend."""

    title: str
    chart: str
    legend: dict[str, str]


def audit_panels(report: TrainingReport) -> tuple[Panel, Panel]:
    """Losses in nats over the steps, and below them their distances with the limit."""
    compared = {
        int(finding.where.removeprefix("step ")): finding
        for finding in report.verdict.findings
        if finding.name == "loss" and finding.where.removeprefix("step ").isdecimal()
    }
    return _losses(report), _distances(report, compared)


def _losses(report: TrainingReport) -> Panel:
    title = "Recorded and replayed losses (nats) over the steps"
    values = [loss for part in report.segments for _, *both in part.losses for loss in both]
    chart = Chart(title, "in the segments that were replayed", (0.0, report.steps), values, 240)
    names = {"recorded", *_background(chart, report)}
    chart.grid()
    for part in report.segments:
        name = AGREES if part.trajectory_agrees and part.state_agrees else OBJECTED
        chart.line([(step, _finite(claimed)) for step, claimed, _ in part.losses], "line recorded")
        chart.line([(step, _finite(replayed)) for step, _, replayed in part.losses], f"line {LEGEND[name]}")
        names.add(name)
    return Panel(title, chart.svg(), _legend(names))


def _distances(report: TrainingReport, compared: Mapping[int, Finding]) -> Panel:
    """The distance of each replayed loss, and above it what is allowed; beyond the limit a cross."""
    title = "How far the losses lie apart over the steps, and the limit"
    shown = {step: finding for step, finding in compared.items() if math.isfinite(finding.distance)}
    values = [value for finding in compared.values() for value in (finding.distance, finding.allowed)]
    chart = Chart(title, "a loss beyond the limit is a cross", (0.0, report.steps), [0.0, *values], 160)
    names = {DISTANCE, LIMIT, *_background(chart, report)}
    chart.grid()
    for part in report.segments:
        steps = [step for step, _, _ in part.losses if step in compared]
        chart.line([(step, _finite(compared[step].distance)) for step in steps], "line agrees")
        chart.line([(step, _finite(compared[step].allowed)) for step in steps], "line limit")
    for step, finding in shown.items():
        if not finding.agrees:
            chart.mark(step, finding.distance, LEGEND[BEYOND], "cross")
            names.add(BEYOND)
    sampled = report.selection.sampled
    if report.nonce and not report.policy.full and len(sampled) <= SAMPLED_SHOWN:
        for step in sampled:
            chart.mark(step, 0.0, "sampled", "triangle")
        names |= {"sampled step"} if sampled else set()
    return Panel(title, chart.svg(), _legend(names))


def _background(chart: Chart, report: TrainingReport) -> set[str]:
    """Fill what was not replayed, and draw the anchors at which whole states were compared; returns what was drawn."""
    reached, names = 0, set[str]()
    ranges = sorted((part.segment.start, part.segment.end) for part in report.segments)
    for start, end in [*ranges, (report.steps, report.steps)]:
        if start > reached:
            chart.band(reached, start, "unread")
            names.add("not replayed")
        reached = max(reached, end)
    marks = {part.segment.start for part in report.segments}
    marks |= {part.segment.end for part in report.segments if part.segment.reaches_anchor}
    for mark in sorted(marks):
        chart.upright(mark, "upright")
    return names | ({"anchor"} if marks else set())


def _legend(names: set[str]) -> dict[str, str]:
    return {name: kind for name, kind in LEGEND.items() if name in names}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# A report as one self-contained page: no script, no link, nothing is fetched.

OBJECTIONS_SHOWN = 20


def frame(page: str) -> str:
    """The page in a frame of its own, so that its style does not reach the notebook around it."""
    look = "width:100%;height:44rem;border:0"
    return f'<iframe title="report of an audit" sandbox srcdoc="{escape(page)}" style="{look}"></iframe>'


def render_page(report: Report, made: AuditContext) -> str:
    """The page as HTML; every value is escaped, because a run's text is the prover's."""
    require("jinja2")
    from jinja2 import Environment

    template = resources.files("tallystick.audits").joinpath("templates/report.html").read_text("utf-8")
    verdict = report.verdict
    segments = report.segments if isinstance(report, TrainingReport) else ()
    return (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            report=report,
            made=made,
            outcome=verdict.outcome,
            sentence=printable(sentence_of(verdict)),
            figures=_figures(report),
            objections=[describe(finding) for finding in verdict.objections[:OBJECTIONS_SHOWN]],
            more=max(0, len(verdict.objections) - OBJECTIONS_SHOWN),
            sections=(
                ("could not check", verdict.unavailable),
                ("checked", verdict.shown),
                ("not checked", verdict.not_checked),
                ("assumed", verdict.assumptions),
            ),
            passed=passed_line(verdict),
            facts=_facts(report, made),
            stacks=_stacks(made),
            policy=_policy(report),
            segments=sorted(segments, key=lambda each: each.trajectory_agrees and each.state_agrees),
            panels=audit_panels(report) if isinstance(report, TrainingReport) and segments else (),
            checks=sorted(summarise_checks(verdict.findings), key=lambda each: each.advisory or not each.disagreeing),
        )
    )


def _figures(report: Report) -> list[tuple[str, str]]:
    coverage, bound = report.verdict.coverage, bad_fewer_than(report.verdict)
    figures = [] if coverage is None else [(f"{coverage.unit} replayed", f"{coverage.done:,} of {coverage.total:,}")]
    if coverage is not None and bound is not None:
        figures.append((f"bad {coverage.unit}, with {PERCENT} confidence", f"fewer than {bound:,}"))
    if isinstance(report, TrainingReport):
        ratio = "unknown" if report.cost_ratio is None else f"{report.cost_ratio:.2f}"
        figures.append(("audit ÷ training time", ratio))
        if report.unreachable:
            figures.append(("out of reach of this window", f"{100 * report.unreachable:.1f} %"))
    return figures


def _facts(report: Report, made: AuditContext) -> list[tuple[str, str]]:
    """What a report has to name, each with its label."""
    facts = [
        ("date", made.date.replace("T", " ").replace("+00:00", " UTC")),
        ("tallystick", made.version),
        ("claim", str(report.claim or "none could be read")),
        ("graph", str(report.graph or "none was replayed")),
        ("graphs", graphs_line(report) if isinstance(report, TrainingReport) else ""),
        ("model", made.model),
        ("data", made.data),
        ("nonce", report.nonce.hex()),
        ("seconds", seconds_line(seconds_of(report, made))),
        ("command", made.command),
    ]
    return [(name, printable(value)) for name, value in facts if value]


def _stacks(made: AuditContext) -> list[tuple[str, str, str]]:
    """Each entry of the two stacks: its name, what the prover states, and ours."""
    claimed, ours = ({} if environment is None else environment.stack() for environment in (made.claimed, made.ours))
    rows = ((name, claimed.get(name, "not set"), ours.get(name, "not set")) for name in {**claimed, **ours})
    return [(name, printable(stated), printable(own)) for name, stated, own in rows if stated or own]


def _policy(report: Report) -> list[tuple[str, str]]:
    values = report.policy.model_dump(mode="json", exclude_none=True)
    changed = report.policy.model_fields_set
    return [(name, f"{value}" if name in changed else f"{value} (default)") for name, value in values.items()]

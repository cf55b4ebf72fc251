"""The report of an audit as text, as JSON, and as one self-contained page with its plot."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from tallystick.audits.replay import SegmentReport
from tallystick.audits.report import Report, claim_named
from tallystick.core.canonical_json import Json
from tallystick.core.lazy import require
from tallystick.core.plots import DARK, LIGHT, Palette, add_legend, dress, new_figure, png_bytes
from tallystick.verdicts.check_table import summarise_checks
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
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tallystick.audits.calls import InferenceReport
    from tallystick.audits.context import AuditContext


# The report of an audit as JSON values: what was found, and when, with which tools and on which stacks.


def audit_json(report: Report | InferenceReport, made: AuditContext) -> dict[str, Json]:
    """The report as JSON values."""
    excluded: Json = {"confidence": CONFIDENCE, "bad_fewer_than": bad_fewer_than(report.verdict)}
    return {**report.to_json(), **made.to_json(), "sentence": sentence_of(report.verdict), "excluded": excluded}


# The report of an audit as text.

GRAPHS_SHOWN: Final = 8


def audit_text(report: Report | InferenceReport, made: AuditContext) -> VerdictText:
    """What the report of an audit says in lines of text."""
    graph = f", graph {report.graph}" if report.graph else ""
    details = [*(_details(report) if isinstance(report, Report) else ()), *_other_stack(made)]
    seconds = seconds_of(report, made)
    repeat = (f"repeat: {made.command}",)
    return VerdictText(report.verdict, f"{claim_named(report.claim)}{graph}", (), repeat, tuple(details), seconds)


def seconds_of(report: Report | InferenceReport, made: AuditContext) -> dict[str, float]:
    """How long each part of an audit took."""
    return {
        "start-up": made.startup_seconds,
        "reading and checking": report.reading_seconds,
        "replay": report.replay_seconds,
    }


def _details(report: Report) -> Iterator[str]:
    ratio = "an unknown share" if report.cost_ratio is None else f"{report.cost_ratio:.2f}"
    if report.segments:
        trajectories = sum(segment.trajectory_agrees for segment in report.segments)
        states = sum(segment.state_agrees for segment in report.segments)
        yield f"of {len(report.segments)} segments the trajectory agrees in {trajectories}, the state in {states}"
    if report.graphs:
        yield graphs_line(report)
    yield f"the audit took {ratio} of the training time"


def graphs_line(report: Report) -> str:
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


# The plot of an audit: recorded and replayed losses, their distance beside its limit, and what was not replayed.

SAMPLED_SHOWN: Final = 400
"""More marks than this would be one bar."""


def draw_audit(report: Report, palette: Palette) -> bytes:
    """The plot as a PNG: losses in nats over the steps above, distance and limit below."""
    figure = new_figure(9.2, 5.0, palette)
    curve, gap = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axes in (curve, gap):
        _shade(axes, report, palette)
    for part in report.segments:
        _draw_losses(curve, part, palette)
    _draw_distances(gap, report, palette)
    _mark_sampled(gap, report, palette)
    curve.set(ylabel="loss (nats)")
    gap.set(ylabel="distance of losses", xlabel="step", xlim=(0, report.steps))
    dress(curve, "Recorded and replayed losses", palette)
    dress(gap, "How far they lie apart, and the limit", palette)
    for axes in (curve, gap):
        _name(axes, palette)
    return png_bytes(figure)


def _shade(axes: Axes, report: Report, palette: Palette) -> None:
    """Fill what was not replayed, and draw the anchors at which whole states were compared."""
    for start, end in _gaps((part.segment.start, part.segment.end) for part in report.segments):
        axes.axvspan(start, end, facecolor=palette.shade, linewidth=0, label="not replayed", zorder=0)
    end = max((part.segment.end for part in report.segments), default=0)
    if end < report.steps:
        axes.axvspan(end, report.steps, facecolor=palette.shade, linewidth=0, label="not replayed", zorder=0)
    marks = {part.segment.start for part in report.segments}
    marks |= {part.segment.end for part in report.segments if part.segment.reaches_anchor}
    for mark in sorted(marks):
        axes.axvline(mark, color=palette.quiet, linewidth=0.7, linestyle=(0, (1, 2)), label="anchor", zorder=1)


def _gaps(replayed: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The stretches before and between replayed ones."""
    reached = 0
    for start, end in sorted(replayed):
        if start > reached:
            yield reached, start
        reached = max(reached, end)


def _draw_losses(axes: Axes, part: SegmentReport, palette: Palette) -> None:
    steps, claimed, replayed = (list(each) for each in zip(*part.losses, strict=True))
    agrees = part.trajectory_agrees and part.state_agrees
    axes.plot(steps, _finite(claimed), color=palette.quiet, alpha=0.55, linewidth=4, label="recorded")
    look: dict[str, Any] = {"color": palette.good} if agrees else {"color": palette.bad, "linestyle": "--"}
    label = "replayed, segment agrees" if agrees else "replayed, segment objected to"
    axes.plot(steps, _finite(replayed), linewidth=1.4, label=label, **look)


def _draw_distances(axes: Axes, report: Report, palette: Palette) -> None:
    """The distance of each replayed loss, and above it what is allowed; beyond the limit a cross."""
    found = {
        int(each.where.removeprefix("step ")): each
        for each in report.verdict.findings
        if each.name == "loss" and each.where.removeprefix("step ").isdecimal()
    }
    for part in report.segments:
        steps = [step for step, _, _ in part.losses if step in found]
        axes.plot(steps, [found[step].distance for step in steps], color=palette.good, linewidth=1.4, label="distance")
        limits = [found[step].allowed for step in steps]
        axes.plot(steps, limits, color=palette.ink, linewidth=1.1, linestyle="--", label="limit")
    beyond = [step for step in sorted(found) if not found[step].agrees and math.isfinite(found[step].distance)]
    if beyond:
        heights = [found[step].distance for step in beyond]
        axes.plot(beyond, heights, color=palette.bad, marker="x", linestyle="none", label="beyond the limit")
    axes.set_ylim(bottom=0)
    axes.margins(y=0.25)


def _mark_sampled(axes: Axes, report: Report, palette: Palette) -> None:
    sampled = report.selection.sampled
    if report.nonce and not report.policy.full and len(sampled) <= SAMPLED_SHOWN:
        heights = [0.0] * len(sampled)
        look: dict[str, Any] = {"marker": "^", "markersize": 6, "linestyle": "none", "clip_on": False, "zorder": 5}
        axes.plot(sampled, heights, color=palette.ink, label="sampled step", **look)


def _name(axes: Axes, palette: Palette) -> None:
    """A legend beside the panel, with each label once."""
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    add_legend(axes, palette, list(once.values()), loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)


def _finite(values: Iterable[float]) -> list[float]:
    return [value if math.isfinite(value) else math.nan for value in values]


# A report as one self-contained page: no script, no link, nothing is fetched.

OBJECTIONS_SHOWN = 20


def frame(page: str) -> str:
    """The page in a frame of its own, so that its style does not reach the notebook around it."""
    look = "width:100%;height:44rem;border:0"
    return f'<iframe title="report of an audit" sandbox srcdoc="{escape(page)}" style="{look}"></iframe>'


def render_page(report: Report | InferenceReport, made: AuditContext) -> str:
    """The page as HTML; every value is escaped, because a run's text is the prover's."""
    require("jinja2", "matplotlib")
    from jinja2 import Environment

    template = resources.files("tallystick.audits").joinpath("templates/report.html").read_text("utf-8")
    verdict = report.verdict
    segments = report.segments if isinstance(report, Report) else ()
    has_plot = isinstance(report, Report) and bool(segments)
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
            light=_picture(report, LIGHT) if has_plot else "",
            dark=_picture(report, DARK) if has_plot else "",
            checks=sorted(summarise_checks(verdict.findings), key=lambda each: each.advisory or not each.disagreeing),
        )
    )


def _figures(report: Report | InferenceReport) -> list[tuple[str, str]]:
    coverage, bound = report.verdict.coverage, bad_fewer_than(report.verdict)
    figures = [] if coverage is None else [(f"{coverage.unit} replayed", f"{coverage.done:,} of {coverage.total:,}")]
    if coverage is not None and bound is not None:
        figures.append((f"bad {coverage.unit}, with {PERCENT} confidence", f"fewer than {bound:,}"))
    if isinstance(report, Report):
        ratio = "unknown" if report.cost_ratio is None else f"{report.cost_ratio:.2f}"
        figures.append(("audit ÷ training time", ratio))
        if report.unreachable:
            figures.append(("out of reach of this window", f"{100 * report.unreachable:.1f} %"))
    return figures


def _facts(report: Report | InferenceReport, made: AuditContext) -> list[tuple[str, str]]:
    """What a report has to name, each with its label."""
    facts = [
        ("date", made.date.replace("T", " ").replace("+00:00", " UTC")),
        ("tallystick", made.version),
        ("claim", str(report.claim or "none could be read")),
        ("graph", str(report.graph or "none was replayed")),
        ("graphs", graphs_line(report) if isinstance(report, Report) else ""),
        ("model", made.model),
        ("data", made.data),
        ("nonce", report.nonce.hex()),
        ("seconds", seconds_line(seconds_of(report, made))),
        ("command", made.command),
    ]
    return [(name, printable(value)) for name, value in facts if value]


def _stacks(made: AuditContext) -> list[tuple[str, str, str]]:
    """Each entry of the two stacks: its name, what the prover states, and ours."""
    claimed, ours = ({} if each is None else each.stack() for each in (made.claimed, made.ours))
    rows = ((name, claimed.get(name, "not set"), ours.get(name, "not set")) for name in {**claimed, **ours})
    return [(name, printable(stated), printable(own)) for name, stated, own in rows if stated or own]


def _policy(report: Report | InferenceReport) -> list[tuple[str, str]]:
    held = report.policy.model_dump(mode="json", exclude_none=True)
    changed = report.policy.model_fields_set
    return [(name, f"{value}" if name in changed else f"{value} (default)") for name, value in held.items()]


def _picture(report: Report | InferenceReport, palette: Palette) -> str:

    assert isinstance(report, Report)  # as the caller asked
    return base64.b64encode(draw_audit(report, palette)).decode()

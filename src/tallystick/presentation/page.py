"""A report as one self-contained page: no script, no link, nothing is fetched."""

from __future__ import annotations

import base64
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from tallystick.audits.report import Report
from tallystick.plotting import DARK, LIGHT, Palette
from tallystick.presentation.audit_text import graphs_line, seconds_of
from tallystick.presentation.check_summary import summarise_checks
from tallystick.presentation.sentence import PERCENT, bad_fewer_than, sentence_of
from tallystick.presentation.verdict_text import describe, passed_line, printable, seconds_line

if TYPE_CHECKING:
    from tallystick.audits.inference import InferenceReport
    from tallystick.presentation.circumstances import Circumstances

OBJECTIONS_SHOWN = 20


def frame(page: str) -> str:
    """The page in a frame of its own, so that its style does not reach the notebook around it."""
    look = "width:100%;height:44rem;border:0"
    return f'<iframe title="report of an audit" sandbox srcdoc="{escape(page)}" style="{look}"></iframe>'


def render_page(report: Report | InferenceReport, made: Circumstances) -> str:
    """The page as HTML; every value is escaped, because a run's text is the prover's."""
    from tallystick.extras import require

    require("jinja2", "matplotlib")
    from jinja2 import Environment

    template = resources.files("tallystick.presentation").joinpath("templates/report.html").read_text("utf-8")
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


def _facts(report: Report | InferenceReport, made: Circumstances) -> list[tuple[str, str]]:
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


def _stacks(made: Circumstances) -> list[tuple[str, str, str]]:
    """Each entry of the two stacks: its name, what the prover states, and ours."""
    claimed, ours = ({} if each is None else each.stack() for each in (made.claimed, made.ours))
    rows = ((name, claimed.get(name, "not set"), ours.get(name, "not set")) for name in {**claimed, **ours})
    return [(name, printable(stated), printable(own)) for name, stated, own in rows if stated or own]


def _policy(report: Report | InferenceReport) -> list[tuple[str, str]]:
    held = report.policy.model_dump(mode="json", exclude_none=True)
    changed = report.policy.model_fields_set
    return [(name, f"{value}" if name in changed else f"{value} (default)") for name, value in held.items()]


def _picture(report: Report | InferenceReport, palette: Palette) -> str:
    from tallystick.presentation.audit_plot import draw_audit

    assert isinstance(report, Report)  # as the caller asked
    return base64.b64encode(draw_audit(report, palette)).decode()

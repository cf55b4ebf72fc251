"""A report as one self-contained page: no script, no link, nothing is fetched."""

from __future__ import annotations

import base64
import io
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from tallystick.audits.report import Report
from tallystick.presentation.check_summary import summarise_checks
from tallystick.presentation.verdict_text import describe

if TYPE_CHECKING:
    from tallystick.audits.inference import InferenceReport
    from tallystick.presentation.circumstances import Circumstances

OBJECTIONS_SHOWN = 20
RECORDED, REPLAYED, RULED_OUT = "#8fa3b8", "#35618f", "#b3261e"


def frame(page: str) -> str:
    """The page in a frame of its own, so that its style does not reach the notebook around it."""
    return f'<iframe title="report of an audit" sandbox srcdoc="{escape(page)}" width="100%" height="720"></iframe>'


def render_page(report: Report | InferenceReport, made: Circumstances) -> str:
    """The page as HTML; every value is escaped, because a run's text is the prover's."""
    from jinja2 import Environment

    template = resources.files("tallystick.presentation").joinpath("templates/report.html").read_text()
    verdict = report.verdict
    segments = report.segments if isinstance(report, Report) else ()
    return (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            report=report,
            mode=report.policy.mode if isinstance(report, Report) else "",
            outcome=verdict.outcome,
            figures=_figures(report),
            objections=[describe(finding) for finding in verdict.objections[:OBJECTIONS_SHOWN]],
            more=max(0, len(verdict.objections) - OBJECTIONS_SHOWN),
            sections=(
                ("could not check", verdict.unavailable),
                ("not checked", verdict.not_checked),
                ("assumed", verdict.assumptions),
            ),
            segments=segments,
            plot=_plot(report) if isinstance(report, Report) and segments else "",
            checks=summarise_checks(verdict.findings),
            version=made.version,
        )
    )


def _figures(report: Report | InferenceReport) -> list[tuple[str, str]]:
    if not isinstance(report, Report):
        return [("calls replayed", f"{len(report.replayed)} of {report.calls}")]
    ratio = "unknown" if report.cost_ratio is None else f"{report.cost_ratio:.2f}"
    chances = [
        (f"caught if {100 * float(share):g} % were bad", f"{100 * chance:.1f} %")
        for share, chance in report.detection().items()
    ]
    return [
        ("steps replayed", f"{report.replayed_steps} of {report.steps}"),
        ("audit ÷ training time", ratio),
        ("out of reach of this window", f"{100 * report.unreachable:.1f} %"),
        *chances,
    ]


def _plot(report: Report) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    curve, gap = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for part in report.segments:
        steps, claimed, replayed = zip(*part.losses, strict=True)
        agrees = part.trajectory_agrees and part.state_agrees
        colour = REPLAYED if agrees else RULED_OUT
        curve.axvspan(part.segment.start, part.segment.end, color=colour, alpha=0.08, linewidth=0)
        curve.plot(steps, claimed, color=RECORDED, linewidth=3, solid_capstyle="butt")
        curve.plot(steps, replayed, color=colour, linewidth=1.1)
        gap.plot(steps, [abs(a - b) for a, b in zip(claimed, replayed, strict=True)], color=colour, linewidth=1.1)
    curve.set(ylabel="loss (nats)", title="Recorded (wide) and replayed (narrow) losses; shaded: replayed segments")
    gap.set(ylabel="|gap|", xlabel="step", xlim=(0, report.steps))
    for axes in (curve, gap):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=140)
    return base64.b64encode(picture.getvalue()).decode()

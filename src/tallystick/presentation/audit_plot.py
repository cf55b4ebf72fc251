"""The plot of an audit: recorded and replayed losses, their distance beside its limit, and what was not replayed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tallystick.audits.replay import SegmentReport
from tallystick.audits.report import Report
from tallystick.plotting import Palette, add_legend, dress, new_figure, png_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

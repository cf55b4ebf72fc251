"""Which picture a template gets for what a view found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup

from tallystick.errors import TallyError
from tallystick.web.pages.charts import ChartMark, line_chart, mark_chart, stacked_bars, strip
from tallystick.web.pages.graph_files import drawing
from tallystick.web.pages.narrowing import narrowing
from tallystick.web.pages.timeline_drawing import timeline
from tallystick.web.pages.topology_drawing import topology

WORDS: Final = {"loss": "Loss", "gradient_norm": "Gradient norm", "learning_rate": "Learning rate"}


def curve(found: Mapping[str, Any], name: str) -> Markup:
    """A curve of a run; the loss stands before the ranges that were replayed, with the anchors at its foot."""
    points = list(zip(found["curve"]["step"], found["curve"][name], strict=True))
    values = [value for _, value in points if value is not None]
    if not values:
        return Markup()
    whole = name == "loss"
    bands = [(a, b, verdict) for a, b, verdict in found["verified"]["spans"]] if whole else []
    text = f"from {values[0]:.4g} to {values[-1]:.4g}, between {min(values):.4g} and {max(values):.4g}"
    across = (float(found["first"]), float(found["last"]))
    title = f"{WORDS[name]}, steps {found['first']} to {found['last']}"
    return line_chart(title, text, points, across, bands, found["anchors"]["steps"] if whole else ())


def drift(found: Mapping[str, Any]) -> Markup:
    """What audits found at single steps, as shares of what was allowed."""
    marks = [_mark(each) for each in found["drift"]]
    bad = sum(mark.bad for mark in marks)
    text = f"{len(marks)} comparisons; {bad} beyond the distance allowed"
    across = (float(found["first"]), float(found["last"]))
    return mark_chart("Distance found, as a share of the distance allowed", text, marks, across, 1.0)


def coverage_strip(line: Mapping[str, Any]) -> Markup:
    """The replayed steps of a run."""
    text = f"{line['accepted']} of {line['steps']} steps replayed and accepted, {line['rejected']} rejected"
    return strip("Replayed steps", text, line["steps"], line["spans"])


def graph(found: Mapping[str, Any]) -> Markup:
    """The drawing of a graph, or a line that says why there is none."""
    asked, row = found["drawn"], found["graph"]
    depth = asked["depth"] if asked["has_modules"] else None
    try:
        return Markup(drawing(row["place"], row["root"], depth, asked["module"], asked["around"]))
    except TallyError as error:
        return Markup('<p class="soft">{}</p>').format(str(error))


def neighbours(found: Mapping[str, Any]) -> Markup:
    """The drawing of an operator between those that it reads and those that read it."""
    row, number = found["graph"], found["operator"]["number"]
    return Markup(drawing(row["place"], row["root"], None, None, number))


def receipts(found: Mapping[str, Any]) -> Markup:
    """The receipts of a stream by verdict, from its beginning to its end."""
    order = ("accepted", "rejected", "inconclusive", "open")
    bars = [[(verdict, part[verdict]) for verdict in order] for part in found["parts"]]
    text = ", ".join(f"{number} {verdict}" for verdict, number in found["verdicts"].items())
    labels = (f"receipt {found['parts'][0]['first']}", f"receipt {found['parts'][-1]['last']}") if bars else ()
    return stacked_bars("Receipts by verdict, in the order of the stream", text, bars, labels)


def lanes(found: Mapping[str, Any]) -> Markup:
    """The timeline by device."""
    return timeline(found)


def connections(cluster: Mapping[str, Any]) -> Markup:
    """The devices of a cluster and their links."""
    return topology(cluster)


def moves(found: Mapping[str, Any]) -> Markup:
    """How a dispute narrows down."""
    return narrowing(found)


def _mark(finding: Mapping[str, Any]) -> ChartMark:
    distance, allowed = finding["distance"], finding["allowed"]
    ratio = distance / allowed if allowed else 2.0
    kind = "accepted" if finding["agrees"] else "rejected"
    return ChartMark(float(finding["step"]), min(ratio, 2.0), kind, not finding["agrees"])

"""The drawing of a timeline: one lane for each device, its streams below each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from markupsafe import Markup

from tallystick.web.pages.asked import to
from tallystick.web.pages.charts import ChartScale

NAME: Final = 18
ROW: Final = 16
GAP: Final = 10
FOOT: Final = 26
UNITS: Final = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def timeline(found: Mapping[str, Any]) -> Markup:
    """The lanes of a page; events lead to their operators, and slices of busy time to a view of that time alone."""
    scale = ChartScale(found["start"], found["end"])
    body, top = [], 0
    for lane in found["lanes"]:
        body += [f'<text class="name" x="0" y="{top + 12}">{escape(lane["device"])}</text>']
        streams = sorted({each["stream"] or 0 for each in lane["events"]}) or [0]
        rows = {stream: top + NAME + index * (ROW + 2) for index, stream in enumerate(streams)}
        body += _events(found, lane, rows, scale) if not found["is_thinned"] else _slices(found, lane["busy"], rows[0])
        top += NAME + len(streams) * (ROW + 2) + GAP
    body += _times(scale, top)
    text = f"{found['found']} events on {found['devices']} devices from {found['start']} to {found['end']} nanoseconds"
    inside = "".join(body)
    named = f"<title>Timeline by device</title><desc>{escape(text)}</desc>"
    return Markup(f'<svg class="timeline" role="group" height="{top + FOOT}">{named}{inside}</svg>')


def _events(
    found: Mapping[str, Any], lane: Mapping[str, Any], rows: Mapping[int, float], scale: ChartScale
) -> Iterator[str]:
    graph = found["trace"]["graph"]
    for each in lane["events"]:
        start = scale.place(each["start_ns"])
        width = scale.place(each["start_ns"] + each["duration_ns"]) - start
        label = f"{each['kind']} {each['name']}, {duration(each['duration_ns'])}"
        box = (
            f'<rect class="{escape(each["kind"])}" x="{100 * start:.4f}%" y="{rows[each["stream"] or 0]}" '
            f'width="{100 * max(width, 0.0008):.4f}%" height="{ROW}"><title>{escape(label)}</title></rect>'
        )
        if each["operator"] is None or graph is None:
            yield box
        else:
            address = to("operator", graph=graph, number=each["operator"])
            yield f'<a href="{escape(address)}" tabindex="-1">{box}</a>'


def _slices(found: Mapping[str, Any], busy: Sequence[float], top: float) -> Iterator[str]:
    """Bars as high as the device was busy; each leads to a view of its time and a little around it."""
    span = found["end"] - found["start"]
    yield f'<rect class="idle" x="0" y="{top}" width="100%" height="{ROW}"/>'
    for index, share in enumerate(busy):
        high = ROW * min(1.0, share)
        a, b = (found["start"] + span * each // len(busy) for each in (index, index + 1))
        address = to("timeline", name=found["trace"]["name"], start=a, end=max(b, a + 1), lane=found["lane"])
        place = f'x="{100 * index / len(busy):.3f}%" width="{100 / len(busy):.3f}%"'
        yield f'<a href="{escape(address)}" tabindex="-1"><rect class="slice" {place} y="{top}" height="{ROW}">'
        yield f"<title>{100 * share:.0f} % busy</title></rect>"
        yield f'<rect class="busy" {place} y="{top + ROW - high:.1f}" height="{high:.1f}"/></a>'


def _times(scale: ChartScale, top: float) -> Iterator[str]:
    unit, each = next((pair for pair in UNITS if scale.high - scale.low >= 2 * pair[1]), UNITS[-1])
    for tick in ChartScale(0, (scale.high - scale.low) / each).ticks(5):
        place = tick * each / (scale.high - scale.low)
        anchor = "start" if place < 0.04 else "end" if place > 0.96 else "middle"
        at = f'x="{100 * place:.3f}%" y="{top + 16}" text-anchor="{anchor}"'
        yield f'<text class="label" {at}>{tick:,.4g} {unit}</text>'


def duration(nanoseconds: float) -> str:
    """A duration in a fitting unit."""
    unit, each = next((pair for pair in UNITS if nanoseconds >= pair[1]), UNITS[-1])
    return f"{nanoseconds / each:.4g} {unit}"

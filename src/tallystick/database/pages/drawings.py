"""Which picture a template gets: a dispute that narrows, a timeline, a topology, or a chart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from markupsafe import Markup

from tallystick.core.errors import TallyError
from tallystick.database.pages.addresses import to
from tallystick.database.pages.charts import ChartMark, ChartScale, line_chart, mark_chart, stacked_bars, strip
from tallystick.database.pages.graphs import drawing
from tallystick.programs.layout import DrawingLayout, arrange

# The drawing of a dispute: one bar a move, on which what is still contested becomes shorter.

ROW: Final = 44
TEXT: Final = 14
BAR: Final = 9
LEAST: Final = 0.006


def narrowing(found: Mapping[str, Any]) -> Markup:
    """The moves of a dispute; those behind the one that is shown are pale, and each leads to the dispute after it."""
    moves = found["moves"]
    body = "".join(part for index, move in enumerate(moves) for part in _move(found, index, move))
    last = moves[-1] if moves else None
    text = "no move yet" if last is None else f"{last['low']} to {last['high']} of {last['size']} {last['level']} left"
    named = f"<title>What is contested after each move</title><desc>{escape(text)}</desc>"
    return Markup(f'<svg class="narrowing" role="group" height="{ROW * max(1, len(moves))}">{named}{body}</svg>')


def _move(found: Mapping[str, Any], index: int, move: Mapping[str, Any]) -> Iterator[str]:
    top, size = index * ROW, max(1, move["size"])
    start, width = move["low"] / size, max((move["high"] - move["low"]) / size, LEAST)
    left = f"{move['level']} {move['low']:,}" + ("" if move["high"] - move["low"] == 1 else f"–{move['high'] - 1:,}")
    state = "later" if index >= found["shown"] else "shown" if index == found["shown"] - 1 else "past"
    address = to("dispute", name=found["dispute"]["name"], move=index + 1)
    yield f'<a class="{state}" href="{escape(address)}" tabindex="-1">'
    who = f"{index + 1}. {move['role']} {move['summary']}"
    yield f'<text class="who" x="0" y="{top + TEXT}">{escape(who)}</text>'
    yield f'<text class="left" x="100%" y="{top + TEXT}" text-anchor="end">{escape(left)}</text>'
    yield f'<rect class="all" x="0" y="{top + TEXT + 7}" width="100%" height="{BAR}"/>'
    place = f'x="{100 * min(start, 1 - LEAST):.3f}%" width="{100 * width:.3f}%"'
    yield f'<rect class="{escape(move["role"])}" {place} y="{top + TEXT + 7}" height="{BAR}"/></a>'


# The drawing of a timeline: one lane for each device, its streams below each other.

NAME: Final = 18
LANE: Final = 16
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
        rows = {stream: top + NAME + index * (LANE + 2) for index, stream in enumerate(streams)}
        body += _events(found, lane, rows, scale) if not found["is_thinned"] else _slices(found, lane["busy"], rows[0])
        top += NAME + len(streams) * (LANE + 2) + GAP
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
            f'width="{100 * max(width, 0.0008):.4f}%" height="{LANE}"><title>{escape(label)}</title></rect>'
        )
        if each["operator"] is None or graph is None:
            yield box
        else:
            address = to("operator", graph=graph, number=each["operator"])
            yield f'<a href="{escape(address)}" tabindex="-1">{box}</a>'


def _slices(found: Mapping[str, Any], busy: Sequence[float], top: float) -> Iterator[str]:
    """Bars as high as the device was busy; each leads to a view of its time and a little around it."""
    span = found["end"] - found["start"]
    yield f'<rect class="idle" x="0" y="{top}" width="100%" height="{LANE}"/>'
    for index, share in enumerate(busy):
        high = LANE * min(1.0, share)
        a, b = (found["start"] + span * each // len(busy) for each in (index, index + 1))
        address = to("timeline", name=found["trace"]["name"], start=a, end=max(b, a + 1), lane=found["lane"])
        place = f'x="{100 * index / len(busy):.3f}%" width="{100 / len(busy):.3f}%"'
        yield f'<a href="{escape(address)}" tabindex="-1"><rect class="slice" {place} y="{top}" height="{LANE}">'
        yield f"<title>{100 * share:.0f} % busy</title></rect>"
        yield f'<rect class="busy" {place} y="{top + LANE - high:.1f}" height="{high:.1f}"/></a>'


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


# The drawing of a cluster: what connects stands above what is connected, hosts above their devices.

DRAWN: Final = 120
RANKS: Final = {"switch": 0, "host": 1}
CHARACTER: Final = 7.4
HEIGHT: Final = 40.0
TOPOLOGY_GAP: Final = (16.0, 44.0)


def topology(cluster: Mapping[str, Any]) -> Markup:
    """The devices and links as SVG, or a line where they are too many to be told apart."""
    devices = sorted(cluster["devices"], key=lambda each: (RANKS.get(each["kind"], 2), each["name"]))
    if len(devices) > DRAWN:
        return Markup('<p class="soft">{:,} devices are too many to draw; {} are not.</p>').format(len(devices), DRAWN)
    order = {device["name"]: index for index, device in enumerate(devices)}
    sizes = {name: (max(len(name), 6) * CHARACTER + 20, HEIGHT) for name in order}
    links = list(_arrows(order, ((link["one"], link["other"]) for link in cluster["links"])))
    inside = _arrows(order, ((each["host"], each["name"]) for each in devices))
    layout = arrange(list(dict.fromkeys((*links, *inside))), sizes, TOPOLOGY_GAP)
    body = "".join([*_lines(layout, {*links}), *_boxes(layout, devices, sizes)])
    text = f"{len(devices)} devices, {len(links)} links"
    view = f'viewBox="0 0 {layout.width:.0f} {layout.height:.0f}" width="{layout.width:.0f}"'
    named = f"<title>Devices and links</title><desc>{text}</desc>"
    return Markup(f'<svg class="topology" role="img" {view}>{named}{body}</svg>')


def _arrows(order: Mapping[str, int], pairs: Iterable[tuple[str | None, ...]]) -> Iterator[tuple[str, str]]:
    """Pairs of two devices that are both listed, the upper one first, so that nothing goes in circles."""
    for pair in pairs:
        listed = sorted({each for each in pair if each in order}, key=lambda each: order[each or ""])
        if len(listed) == 2:
            yield str(listed[0]), str(listed[1])


def _lines(layout: DrawingLayout, links: set[tuple[str, str]]) -> Iterator[str]:
    for pair, points in layout.routes.items():
        kind = "link" if pair in links else "inside"
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline class="{kind}" points="{path}"/>'


def _boxes(
    layout: DrawingLayout, devices: list[dict[str, Any]], sizes: Mapping[str, tuple[float, float]]
) -> Iterator[str]:
    for device in devices:
        (x, y), (width, height) = layout.middles[device["name"]], sizes[device["name"]]
        place = f'x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}"'
        yield f'<rect class="{escape(device["kind"])}" {place} rx="5"/>'
        yield f'<text x="{x:.1f}" y="{y - 3:.1f}" text-anchor="middle">{escape(device["name"])}</text>'
        yield f'<text class="kind" x="{x:.1f}" y="{y + 12:.1f}" text-anchor="middle">{escape(device["kind"])}</text>'


# Which picture a template gets for what a view found.

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

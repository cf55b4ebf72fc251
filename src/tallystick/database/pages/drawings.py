"""Which picture a template gets: a dispute that narrows, a timeline, a topology, or a chart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from markupsafe import Markup

from tallystick.core.errors import TallyError
from tallystick.core.svg import Chart, Scale, anchored, named, share, strip, tag
from tallystick.database.pages.addresses import to
from tallystick.database.pages.graphs import drawing
from tallystick.programs.layout import arrange

# The drawing of a dispute: one bar a move, on which what is still contested becomes shorter.

ROW: Final = 44
TEXT: Final = 14
BAR: Final = 9
LEAST: Final = 0.006


def moves(shown: Mapping[str, Any]) -> Markup:
    """The moves of a dispute; those behind the one that is shown are pale, and each leads to the dispute after it."""
    moves = shown["moves"]
    last = moves[-1] if moves else None
    text = "no move yet" if last is None else f"{last['low']} to {last['high']} of {last['size']} {last['level']} left"
    body = (_move(shown, index, move) for index, move in enumerate(moves))
    inside = (named("What is contested after each move", text), *body)
    return Markup(tag("svg", *inside, class_="narrowing", role="group", height=ROW * max(1, len(moves))))


def _move(shown: Mapping[str, Any], index: int, move: Mapping[str, Any]) -> str:
    top, size = index * ROW, max(1, move["size"])
    start, width = move["low"] / size, max((move["high"] - move["low"]) / size, LEAST)
    left = f"{move['level']} {move['low']:,}" + ("" if move["high"] - move["low"] == 1 else f"–{move['high'] - 1:,}")
    state = "later" if index >= shown["shown"] else "shown" if index == shown["shown"] - 1 else "past"
    bar = {"y": top + TEXT + 7, "height": BAR}
    return tag(
        "a",
        tag("text", escape(f"{index + 1}. {move['role']} {move['summary']}"), class_="who", x="0", y=top + TEXT),
        tag("text", escape(left), class_="left", x="100%", y=top + TEXT, text_anchor="end"),
        tag("rect", class_="all", x="0", width="100%", **bar),
        tag("rect", class_=move["role"], x=share(min(start, 1 - LEAST)), width=share(width), **bar),
        class_=state,
        href=to("dispute", name=shown["dispute"]["name"], move=index + 1),
        tabindex="-1",
    )


# The drawing of a timeline: one lane for each device, its streams below each other.

NAME: Final = 18
LANE: Final = 16
GAP: Final = 10
FOOT: Final = 26
UNITS: Final = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def lanes(shown: Mapping[str, Any]) -> Markup:
    """The lanes of a page; events lead to their operators, and slices of busy time to a view of that time alone."""
    scale = Scale(shown["start"], shown["end"])
    text = f"{shown['found']} events on {shown['devices']} devices from {shown['start']} to {shown['end']} nanoseconds"
    body, top = [named("Timeline by device", text)], 0
    for lane in shown["lanes"]:
        body.append(tag("text", escape(lane["device"]), class_="name", x="0", y=top + 12))
        streams = sorted({each["stream"] or 0 for each in lane["events"]}) or [0]
        rows = {stream: top + NAME + index * (LANE + 2) for index, stream in enumerate(streams)}
        body += _events(shown, lane, rows, scale) if not shown["is_thinned"] else _slices(shown, lane["busy"], rows[0])
        top += NAME + len(streams) * (LANE + 2) + GAP
    body += _times(scale, top)
    return Markup(tag("svg", *body, class_="timeline", role="group", height=top + FOOT))


def _events(
    shown: Mapping[str, Any], lane: Mapping[str, Any], rows: Mapping[int, float], scale: Scale
) -> Iterator[str]:
    graph = shown["trace"]["graph"]
    for event in lane["events"]:
        start = scale.place(event["start_ns"])
        width = scale.place(event["start_ns"] + event["duration_ns"]) - start
        label = tag("title", escape(f"{event['kind']} {event['name']}, {duration(event['duration_ns'])}"))
        place = {"x": f"{100 * start:.4f}%", "width": f"{100 * max(width, 0.0008):.4f}%"}
        box = tag("rect", label, class_=event["kind"], **place, y=rows[event["stream"] or 0], height=LANE)
        if event["operator"] is None or graph is None:
            yield box
        else:
            yield tag("a", box, href=to("operator", graph=graph, number=event["operator"]), tabindex="-1")


def _slices(shown: Mapping[str, Any], busy: Sequence[float], top: float) -> Iterator[str]:
    """Bars as high as the device was busy; each leads to a view of its time and a little around it."""
    span = shown["end"] - shown["start"]
    yield tag("rect", class_="idle", x="0", y=top, width="100%", height=LANE)
    for index, part in enumerate(busy):
        high = LANE * min(1.0, part)
        a, b = (shown["start"] + span * place // len(busy) for place in (index, index + 1))
        place = {"x": share(index / len(busy)), "width": share(1 / len(busy))}
        label = tag("title", f"{100 * part:.0f} % busy")
        yield tag(
            "a",
            tag("rect", label, class_="slice", **place, y=top, height=LANE),
            tag("rect", class_="busy", **place, y=top + LANE - high, height=high),
            href=to("timeline", name=shown["trace"]["name"], start=a, end=max(b, a + 1), lane=shown["lane"]),
            tabindex="-1",
        )


def _times(scale: Scale, top: float) -> Iterator[str]:
    whole = scale.high - scale.low
    unit, size = next((pair for pair in UNITS if whole >= 2 * pair[1]), UNITS[-1])
    for tick in Scale(0, whole / size).ticks(5):
        place, text = tick * size / whole, f"{tick:,.4g} {unit}"
        yield tag("text", text, class_="label", x=share(place), y=top + 16, text_anchor=anchored(place))


def duration(nanoseconds: float) -> str:
    """A duration in a fitting unit."""
    unit, size = next((pair for pair in UNITS if nanoseconds >= pair[1]), UNITS[-1])
    return f"{nanoseconds / size:.4g} {unit}"


# The drawing of a cluster: what connects stands above what is connected, hosts above their devices.

DRAWN: Final = 120
RANKS: Final = {"switch": 0, "host": 1}
CHARACTER: Final = 7.4
HEIGHT: Final = 40.0
TOPOLOGY_GAP: Final = (16.0, 44.0)


def connections(cluster: Mapping[str, Any]) -> Markup:
    """The devices and links as SVG, or a line where they are too many to be told apart."""
    devices = sorted(cluster["devices"], key=lambda each: (RANKS.get(each["kind"], 2), each["name"]))
    if len(devices) > DRAWN:
        return Markup('<p class="soft">{:,} devices are too many to draw; {} are not.</p>').format(len(devices), DRAWN)
    order = {device["name"]: index for index, device in enumerate(devices)}
    sizes = {name: (max(len(name), 6) * CHARACTER + 20, HEIGHT) for name in order}
    links = list(_arrows(order, ((link["one"], link["other"]) for link in cluster["links"])))
    inside = _arrows(order, ((each["host"], each["name"]) for each in devices))
    layout = arrange(list(dict.fromkeys((*links, *inside))), sizes, TOPOLOGY_GAP)
    body = [named("Devices and links", f"{len(devices)} devices, {len(links)} links")]
    for pair, points in layout.routes.items():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        body.append(tag("polyline", class_="link" if pair in links else "inside", points=path))
    for device in devices:
        (x, y), (width, height) = layout.middles[device["name"]], sizes[device["name"]]
        corner = {"x": x - width / 2, "y": y - height / 2, "width": width, "height": height}
        body.append(tag("rect", class_=device["kind"], **corner, rx="5"))
        body.append(tag("text", escape(device["name"]), x=x, y=y - 3, text_anchor="middle"))
        body.append(tag("text", escape(device["kind"]), class_="kind", x=x, y=y + 12, text_anchor="middle"))
    view = f"0 0 {layout.width:.0f} {layout.height:.0f}"
    return Markup(tag("svg", *body, class_="topology", role="img", viewBox=view, width=f"{layout.width:.0f}"))


def _arrows(order: Mapping[str, int], pairs: Iterable[tuple[str | None, ...]]) -> Iterator[tuple[str, str]]:
    """Pairs of two devices that are both listed, the upper one first, so that nothing goes in circles."""
    for pair in pairs:
        listed = sorted({each for each in pair if each in order}, key=lambda each: order[each or ""])
        if len(listed) == 2:
            yield str(listed[0]), str(listed[1])


# Which picture a template gets for what a view found.

VERDICTS: Final = ("accepted", "rejected", "inconclusive", "open")
WORDS: Final = {"loss": "Loss", "gradient_norm": "Gradient norm", "learning_rate": "Learning rate"}


def curve(shown: Mapping[str, Any], name: str) -> Markup:
    """A curve of a run; the loss stands before the ranges that were replayed, with the anchors at its foot."""
    points = list(zip(shown["curve"]["step"], shown["curve"][name], strict=True))
    values = [value for _, value in points if value is not None]
    if not values:
        return Markup()
    text = f"from {values[0]:.4g} to {values[-1]:.4g}, between {min(values):.4g} and {max(values):.4g}"
    title = f"{WORDS[name]}, steps {shown['first']} to {shown['last']}"
    chart = Chart(title, text, (float(shown["first"]), float(shown["last"])), values)
    for first, last, verdict in shown["verified"]["spans"] if name == "loss" else ():
        chart.band(first - 1, last, verdict, verdict)
    chart.grid()
    for step in shown["anchors"]["steps"] if name == "loss" else ():
        chart.upright(step, "anchor", 7)
    chart.line(points)
    return Markup(chart.svg())


def drift(shown: Mapping[str, Any]) -> Markup:
    """What audits found at single steps, as shares of what was allowed; what disagrees is a cross."""
    ratios = [_share_of_allowed(finding) for finding in shown["drift"]]
    bad = sum(not finding["agrees"] for finding in shown["drift"])
    text = f"{len(ratios)} comparisons; {bad} beyond the distance allowed"
    across = (float(shown["first"]), float(shown["last"]))
    chart = Chart("Distance found, as a share of the distance allowed", text, across, [0.0, 1.0, *ratios])
    chart.grid()
    chart.rule(1.0, "limit")
    for finding, ratio in zip(shown["drift"], ratios, strict=True):
        kind, shape = ("accepted", "") if finding["agrees"] else ("rejected", "cross")
        chart.mark(float(finding["step"]), ratio, kind, shape)
    return Markup(chart.svg())


def _share_of_allowed(finding: Mapping[str, Any]) -> float:
    return min(finding["distance"] / finding["allowed"] if finding["allowed"] else 2.0, 2.0)


def coverage_strip(line: Mapping[str, Any]) -> Markup:
    """The replayed steps of a run."""
    text = f"{line['accepted']} of {line['steps']} steps replayed and accepted, {line['rejected']} rejected"
    return Markup(strip("Replayed steps", text, line["steps"], line["spans"]))


def graph(shown: Mapping[str, Any]) -> Markup:
    """The drawing of a graph, or a line that says why there is none."""
    wanted, row = shown["drawn"], shown["graph"]
    depth = wanted["depth"] if wanted["has_modules"] else None
    try:
        return Markup(drawing(row["place"], row["root"], depth, wanted["module"], wanted["around"]))
    except TallyError as error:
        return Markup('<p class="soft">{}</p>').format(str(error))


def neighbours(shown: Mapping[str, Any]) -> Markup:
    """The drawing of an operator between those that it reads and those that read it."""
    row, number = shown["graph"], shown["operator"]["number"]
    return Markup(drawing(row["place"], row["root"], None, None, number))


def receipts(shown: Mapping[str, Any]) -> Markup:
    """The receipts of a stream by verdict, from its beginning to its end."""
    parts = shown["parts"]
    text = ", ".join(f"{number} {verdict}" for verdict, number in shown["verdicts"].items())
    most = max((sum(part[verdict] for verdict in VERDICTS) for part in parts), default=0) or 1
    chart = Chart("Receipts by verdict, in the order of the stream", text, (0, 1), (0, most))
    chart.grid(foot=False)
    for index, part in enumerate(parts):
        foot = 0
        for verdict in VERDICTS:
            chart.bar(index / len(parts), 0.82 / len(parts), foot, foot + part[verdict], verdict)
            foot += part[verdict]
    if parts:
        chart.foot_label(0.0, f"receipt {parts[0]['first']}")
        chart.foot_label(1.0, f"receipt {parts[-1]['last']}")
    return Markup(chart.svg())

"""The drawing of a cluster: what connects stands above what is connected, hosts above their devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any, Final

from markupsafe import Markup

from tallystick.graphs.layout import DrawingLayout, arrange

DRAWN: Final = 120
RANKS: Final = {"switch": 0, "host": 1}
CHARACTER: Final = 7.4
HEIGHT: Final = 40.0
GAP: Final = (16.0, 44.0)


def topology(cluster: Mapping[str, Any]) -> Markup:
    """The devices and links as SVG, or a line where they are too many to be told apart."""
    devices = sorted(cluster["devices"], key=lambda each: (RANKS.get(each["kind"], 2), each["name"]))
    if len(devices) > DRAWN:
        return Markup('<p class="soft">{:,} devices are too many to draw; {} are not.</p>').format(len(devices), DRAWN)
    order = {device["name"]: index for index, device in enumerate(devices)}
    sizes = {name: (max(len(name), 6) * CHARACTER + 20, HEIGHT) for name in order}
    links = list(_arrows(order, ((link["one"], link["other"]) for link in cluster["links"])))
    inside = _arrows(order, ((each["host"], each["name"]) for each in devices))
    layout = arrange(list(dict.fromkeys((*links, *inside))), sizes, GAP)
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

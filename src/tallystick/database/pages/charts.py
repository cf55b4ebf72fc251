"""Charts as inline SVG that fits its place: horizontal places are shares of the width, so text keeps its size.

Colours and fonts are those of the style sheet, by class. Every chart has a title and a description.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from markupsafe import Markup

HEIGHT: Final = 190
FOOT: Final = 24
HEAD: Final = 18
UNITS: Final = 1000
LEAST: Final = 0.002
LABELLED: Final = 0.09
"""A shaded part of a chart that is so wide says its verdict."""

Point = tuple[float, float | None]


@dataclass(frozen=True)
class ChartScale:
    """From numbers to places: `low` is at 0, `high` at 1."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> ChartScale:
        """The scale that holds all values."""
        found = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(found), max(found)
        return cls(low, high if high > low else low + (abs(low) or 1.0))

    def place(self, value: float) -> float:
        """The place of a value, which is kept between 0 and 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def ticks(self, count: int, whole: bool = False) -> list[float]:
        """At most about `count` round values; whole numbers where asked."""
        raw = (self.high - self.low) / max(1, count)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= raw * 0.999)
        step = max(1.0, round(step)) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        return [each * step for each in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class ChartMark:
    """One point beside the line: `kind` is a class of the style sheet, and `bad` ones are crosses."""

    x: float
    y: float
    kind: str
    bad: bool


def line_chart(
    title: str,
    description: str,
    points: Sequence[Point],
    across: tuple[float, float],
    bands: Iterable[tuple[float, float, str]] = (),
    ticks: Iterable[float] = (),
) -> Markup:
    """A line over steps; `bands` shade ranges of steps by their verdict, `ticks` mark single ones at the foot."""
    x = ChartScale(across[0], max(across[1], across[0] + 1))
    y = _roomy(ChartScale.of(value for _, value in points if value is not None))
    body = [*_bands(x, bands), *_rules(y), *_foot(x), *(_tick(x, each) for each in ticks)]
    body += [_plot(_pieces(points, x, y))]
    return _chart(title, description, body)


def mark_chart(
    title: str, description: str, marks: Sequence[ChartMark], across: tuple[float, float], limit: float
) -> Markup:
    """Points over steps, and the line that they may not pass."""
    x = ChartScale(across[0], max(across[1], across[0] + 1))
    y = _roomy(ChartScale.of([0.0, limit, *(mark.y for mark in marks)]))
    body = [*_rules(y), *_foot(x), _limit(y, limit), *(_mark(x, y, mark) for mark in marks)]
    return _chart(title, description, body)


def strip(title: str, description: str, steps: int, spans: Iterable[tuple[int, int, str]]) -> Markup:
    """A bar of steps 1 to `steps`, on which ranges are filled by their verdict."""
    whole = max(1, steps)
    body = ['<rect class="ground" x="0" y="0" width="100%" height="100%"/>']
    for first, last, verdict in spans:
        start, end = (max(first, 1) - 1) / whole, min(last, whole) / whole
        if end > start:
            body += _filled(start, max(end, start + LEAST), verdict)
    return Markup(f'<svg class="strip" role="img">{_named(title, description)}{"".join(body)}</svg>')


def _filled(start: float, end: float, verdict: str) -> Iterator[str]:
    """A part of a strip: accepted is full, inconclusive half as high, and rejected struck through."""
    top = 50 if verdict == "inconclusive" else 0
    across = f'x="{_share(start)}" width="{_share(end - start)}"'
    yield f'<rect class="{escape(verdict)}" {across} y="{top}%" height="{100 - top}%"/>'
    if verdict == "rejected":
        yield f'<line class="strike" x1="{_share(start)}" x2="{_share(end)}" y1="50%" y2="50%"/>'


def stacked_bars(
    title: str, description: str, bars: Sequence[Sequence[tuple[str, int]]], labels: Sequence[str]
) -> Markup:
    """Bars of counts by kind, one beside the other, from the first kind at the foot upwards."""
    top = max((sum(count for _, count in bar) for bar in bars), default=0) or 1
    y = ChartScale(0, top)
    body, width = [*_rules(_roomy(y))], 1 / max(1, len(bars))
    for index, bar in enumerate(bars):
        foot = 0
        for kind, count in bar:
            body.append(_bar(index * width, width * 0.82, _roomy(y), foot, foot + count, kind))
            foot += count
    for place, label in zip((0.0, 1.0), labels, strict=False):
        body.append(_label(place, label))
    return _chart(title, description, body)


def _chart(title: str, description: str, body: Iterable[str]) -> Markup:
    height = HEAD + HEIGHT + FOOT
    inside = "".join(body)
    return Markup(f'<svg class="chart" role="img" height="{height}">{_named(title, description)}{inside}</svg>')


def _named(title: str, description: str) -> str:
    return f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"


def _roomy(scale: ChartScale) -> ChartScale:
    """A scale with a little room at both ends; one that begins at zero stays there."""
    room = (scale.high - scale.low) * 0.06
    return ChartScale(scale.low if scale.low == 0 else scale.low - room, scale.high + room)


def _share(place: float) -> str:
    return f"{100 * place:.3f}%"


def _down(scale: ChartScale, value: float) -> float:
    return HEAD + HEIGHT * (1 - scale.place(value))


def _rules(y: ChartScale) -> Iterator[str]:
    for tick in y.ticks(4):
        at = _down(y, tick)
        yield f'<line class="rule" x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text class="label" x="0" y="{at - 5:.1f}">{_number(tick)}</text>'


def _foot(x: ChartScale) -> Iterator[str]:
    for tick in x.ticks(5, whole=True):
        yield _label(x.place(tick), _number(tick))


def _label(place: float, text: str) -> str:
    anchor = "start" if place < 0.04 else "end" if place > 0.96 else "middle"
    at = HEAD + HEIGHT + FOOT - 6
    return f'<text class="label" x="{_share(place)}" y="{at}" text-anchor="{anchor}">{escape(text)}</text>'


def _bands(x: ChartScale, bands: Iterable[tuple[float, float, str]]) -> Iterator[str]:
    for first, last, verdict in bands:
        start, end = x.place(first - 1), x.place(last)
        if end > start:
            yield (
                f'<rect class="band {escape(verdict)}" x="{_share(start)}" y="{HEAD}" '
                f'width="{_share(end - start)}" height="{HEIGHT}"/>'
            )
        if end - start > LABELLED:
            at = f'x="{_share(end)}" dx="-6" y="{HEAD + 14}" text-anchor="end"'
            yield f'<text class="label" {at}>{escape(verdict)}</text>'


def _tick(x: ChartScale, value: float) -> str:
    at, foot = _share(x.place(value)), HEAD + HEIGHT
    return f'<line class="anchor" x1="{at}" x2="{at}" y1="{foot - 7}" y2="{foot}"/>'


def _limit(y: ChartScale, value: float) -> str:
    at = _down(y, value)
    return f'<line class="limit" x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}"/>'


def _mark(x: ChartScale, y: ChartScale, mark: ChartMark) -> str:
    at, down = _share(x.place(mark.x)), _down(y, mark.y)
    if not mark.bad:
        return f'<circle class="mark {escape(mark.kind)}" cx="{at}" cy="{down:.1f}" r="3.2"/>'
    cross = '<path d="M-4 -4L4 4M4 -4L-4 4"/>'
    return f'<svg class="mark {escape(mark.kind)}" x="{at}" y="{down:.1f}" overflow="visible">{cross}</svg>'


def _bar(left: float, width: float, y: ChartScale, foot: float, top: float, kind: str) -> str:
    upper, lower = _down(y, top), _down(y, foot)
    return (
        f'<rect class="{escape(kind)}" x="{_share(left)}" y="{upper:.1f}" '
        f'width="{_share(width)}" height="{max(0.0, lower - upper):.1f}"/>'
    )


def _pieces(points: Sequence[Point], x: ChartScale, y: ChartScale) -> Iterator[str]:
    """Lines between points that have a value; a value that is missing leaves a gap."""
    piece: list[str] = []
    for (at, value), (_, following) in pairwise([*points, (0.0, None)]):
        if value is None:
            continue
        piece.append(f"{UNITS * x.place(at):.1f},{UNITS * (1 - y.place(value)):.1f}")
        if following is None:
            yield " ".join(piece if len(piece) > 1 else piece * 2)
            piece = []


def _plot(pieces: Iterable[str]) -> str:
    lines = "".join(f'<polyline points="{piece}"/>' for piece in pieces)
    view = f'viewBox="0 0 {UNITS} {UNITS}" preserveAspectRatio="none"'
    return f'<svg class="line" x="0" y="{HEAD}" width="100%" height="{HEIGHT}" {view}>{lines}</svg>'


def _number(value: float) -> str:
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.3g}"

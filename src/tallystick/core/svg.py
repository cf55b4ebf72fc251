"""Drawings as inline SVG: elements, scales, and charts that fit their place.

Horizontal places are shares of the width, so a chart is as wide as its page and its text keeps its size. Colours and
fonts are those of the style sheet around it, by class. Every drawing has a title and a description.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

HEIGHT: Final = 190
FOOT: Final = 24
HEAD: Final = 18
UNITS: Final = 1000
LEAST: Final = 0.002
LABELLED: Final = 0.09
"""A shaded part of a chart has its label from this share of the width on."""
SHAPES: Final = {"cross": "M-4 -4L4 4M4 -4L-4 4", "triangle": "M-4 0L0 -8L4 0Z"}

Point = tuple[float, float | None]


def tag(name: str, *inside: str, **attributes: object) -> str:
    """An element with what is inside, which is escaped already, and its attributes, which are escaped here.

    `class_` is written `class`, and `_` in a name `-`; lengths have one digit behind the point; `None` is left out.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(f"{value:.1f}" if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{words}>{''.join(inside)}</{name}>" if inside else f"<{name}{words}/>"


def named(title: str, description: str) -> str:
    """What a screen reader says of a drawing."""
    return tag("title", escape(title)) + tag("desc", escape(description))


def share(place: float) -> str:
    """A part of the width."""
    return f"{100 * place:.3f}%"


def anchored(place: float) -> str:
    """Where a text stands that begins, ends or is centred at a part of the width, so that none of it is cut off."""
    return "start" if place < 0.04 else "end" if place > 0.96 else "middle"


@dataclass(frozen=True)
class Scale:
    """From numbers to places: `low` is at 0, `high` at 1."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Scale:
        """The scale that holds all finite values."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        return cls(low, high if high > low else low + (abs(low) or 1.0))

    def roomy(self, share: float = 0.06) -> Scale:
        """With a little room at both ends; one that begins at zero stays there."""
        room = (self.high - self.low) * share
        return Scale(self.low if self.low == 0 else self.low - room, self.high + room)

    def place(self, value: float) -> float:
        """The place of a value, which is kept between 0 and 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def ticks(self, count: int, whole: bool = False) -> list[float]:
        """At most about `count` round values; whole numbers with `whole`."""
        raw = (self.high - self.low) / max(1, count)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
        step = max(1.0, round(step)) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Chart:
    """A chart over a range of steps or shares: whatever is drawn first lies at the bottom.

    `values` are those that the vertical scale has to hold; `height` is in pixels.
    """

    def __init__(
        self,
        title: str,
        description: str,
        across: tuple[float, float],
        values: Iterable[float],
        height: int = HEIGHT,
    ) -> None:
        self.x, self.y = Scale(across[0], max(across[1], across[0] + 1)), Scale.of(values).roomy()
        self.height, self.body = height, [named(title, description)]

    def svg(self) -> str:
        """The whole chart."""
        return tag("svg", *self.body, class_="chart", role="img", height=HEAD + self.height + FOOT)

    def grid(self, foot: bool = True) -> None:
        """Horizontal rules with their values, and without `foot=False` the steps below."""
        for value in self.y.ticks(4):
            at = self._down(value)
            self.body.append(tag("line", class_="rule", x1="0", x2="100%", y1=at, y2=at))
            self.body.append(tag("text", _number(value), class_="label", x="0", y=at - 5))
        for value in self.x.ticks(5, whole=True) if foot else ():
            self.foot_label(self.x.place(value), _number(value))

    def foot_label(self, place: float, text: str) -> None:
        """A text below a part of the width."""
        at, anchor = HEAD + self.height + FOOT - 6, anchored(place)
        self.body.append(tag("text", escape(text), class_="label", x=share(place), y=at, text_anchor=anchor))

    def band(self, first: float, last: float, kind: str, label: str = "") -> None:
        """Shade a range; one that is wide enough says its label."""
        start, end = self.x.place(first), self.x.place(last)
        if end > start:
            place = {"x": share(start), "y": HEAD, "width": share(end - start), "height": self.height}
            self.body.append(tag("rect", class_=f"band {kind}", **place))
        if label and end - start > LABELLED:
            place = {"x": share(end), "dx": "-6", "y": HEAD + 14, "text_anchor": "end"}
            self.body.append(tag("text", escape(label), class_="label", **place))

    def upright(self, value: float, kind: str, height: float | None = None) -> None:
        """A vertical line at a step, from the foot upwards; without `height`, all of it."""
        at, foot = share(self.x.place(value)), HEAD + self.height
        self.body.append(tag("line", class_=kind, x1=at, x2=at, y1=foot - (height or self.height), y2=foot))

    def rule(self, value: float, kind: str) -> None:
        """A horizontal line."""
        at = self._down(value)
        self.body.append(tag("line", class_=kind, x1="0", x2="100%", y1=at, y2=at))

    def line(self, points: Sequence[Point], kind: str = "line") -> None:
        """Lines between points that have a value; a value that is missing leaves a gap."""
        pieces: list[str] = []
        piece: list[str] = []
        for (at, value), (_, following) in pairwise([*points, (0.0, None)]):
            if value is None:
                continue
            piece.append(f"{UNITS * self.x.place(at):.1f},{UNITS * (1 - self.y.place(value)):.1f}")
            if following is None:
                pieces.append(tag("polyline", points=" ".join(piece if len(piece) > 1 else piece * 2)))
                piece = []
        size = {"x": "0", "y": HEAD, "width": "100%", "height": self.height}
        self.body.append(
            tag("svg", *pieces, class_=kind, **size, viewBox=f"0 0 {UNITS} {UNITS}", preserveAspectRatio="none")
        )

    def mark(self, x: float, y: float, kind: str, shape: str = "") -> None:
        """A point: a circle, or one of `SHAPES`."""
        at, down = share(self.x.place(x)), self._down(y)
        if not shape:
            self.body.append(tag("circle", class_=f"mark {kind}", cx=at, cy=down, r="3.2"))
        else:
            drawn = tag("path", d=SHAPES[shape])
            self.body.append(tag("svg", drawn, class_=f"mark {kind}", x=at, y=down, overflow="visible"))

    def bar(self, left: float, width: float, foot: float, top: float, kind: str) -> None:
        """A bar from one value up to another, over a part of the width."""
        upper, lower = self._down(top), self._down(foot)
        place = {"x": share(left), "y": upper, "width": share(width), "height": max(0.0, lower - upper)}
        self.body.append(tag("rect", class_=kind, **place))

    def _down(self, value: float) -> float:
        return HEAD + self.height * (1 - self.y.place(value))


def strip(title: str, description: str, steps: int, spans: Iterable[tuple[int, int, str]]) -> str:
    """A bar of steps 1 to `steps`, on which ranges are filled by their verdict.

    What was accepted is full, inconclusive half as high, and rejected struck through.
    """
    whole = max(1, steps)
    body = [named(title, description), tag("rect", class_="ground", x="0", y="0", width="100%", height="100%")]
    for first, last, verdict in spans:
        start, end = (max(first, 1) - 1) / whole, min(last, whole) / whole
        if end <= start:
            continue
        end = max(end, start + LEAST)
        top = 50 if verdict == "inconclusive" else 0
        place = {"x": share(start), "width": share(end - start), "y": f"{top}%", "height": f"{100 - top}%"}
        body.append(tag("rect", class_=verdict, **place))
        if verdict == "rejected":
            body.append(tag("line", class_="strike", x1=share(start), x2=share(end), y1="50%", y2="50%"))
    return tag("svg", *body, class_="strip", role="img")


def _number(value: float) -> str:
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.3g}"

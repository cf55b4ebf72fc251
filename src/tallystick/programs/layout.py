"""Arranges boxes in layers so that every arrow points down and few arrows cross (Sugiyama, Tagawa and Toda, 1981).

An arrow over several layers passes through one point in each of them. Arrows from the same box share these points.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

Box: TypeAlias = str
Spot: TypeAlias = tuple[Box, int]
"""A box (in its own layer) or the point in a lower layer through which its arrows pass."""
Point: TypeAlias = tuple[float, float]

SWEEPS: Final = 8
POINT_WIDTH: Final = 6.0


@dataclass(frozen=True)
class DrawingLayout:
    """The centre of every box, the points of every arrow, and the size of the whole drawing."""

    middles: Mapping[Box, Point]
    routes: Mapping[tuple[Box, Box], tuple[Point, ...]]
    width: float
    height: float


def arrange(
    arrows: Collection[tuple[Box, Box]], sizes: Mapping[Box, tuple[float, float]], gap: tuple[float, float]
) -> DrawingLayout:
    """Place boxes of these `sizes`; every arrow leads to a box later in their order."""
    layers = _layers(arrows, list(sizes))
    links = _links(arrows, layers)
    rows = _ordered(_rows(layers, links), links)
    widths = {spot: sizes[spot[0]][0] if layers[spot[0]] == spot[1] else POINT_WIDTH for row in rows for spot in row}
    across = _across(rows, links, widths, gap[0])
    down, height = _down(rows, layers, sizes, gap[1])
    places = {spot: (across[spot], down[spot[1]]) for row in rows for spot in row}
    width = max((across[spot] + widths[spot] / 2 for row in rows for spot in row), default=0)
    return DrawingLayout(
        {box: places[box, layer] for box, layer in layers.items()},
        {(a, b): _route(a, b, layers, places) for a, b in arrows},
        width + gap[0] / 2,
        height,
    )


def _layers(arrows: Collection[tuple[Box, Box]], boxes: Sequence[Box]) -> dict[Box, int]:
    """The layer of each box: its longest path from the top; a box without a path is just above its first reader."""
    before: dict[Box, list[Box]] = {}
    after: dict[Box, list[Box]] = {}
    for a, b in arrows:
        before.setdefault(b, []).append(a)
        after.setdefault(a, []).append(b)
    layer_of: dict[Box, int] = {}
    for box in boxes:
        layer_of[box] = max((layer_of[a] + 1 for a in before.get(box, ())), default=0)
    for box in boxes:
        if box not in before and box in after:
            layer_of[box] = min(layer_of[b] for b in after[box]) - 1
    return layer_of


def _links(arrows: Collection[tuple[Box, Box]], layers: Mapping[Box, int]) -> set[tuple[Spot, Spot]]:
    links = set()
    for a, b in arrows:
        stops = [(a, layer) for layer in range(layers[a], layers[b])]
        links |= set(zip(stops, [*stops[1:], (b, layers[b])], strict=True))
    return links


def _rows(layers: Mapping[Box, int], links: Collection[tuple[Spot, Spot]]) -> list[list[Spot]]:
    rows: list[dict[Spot, None]] = [{} for _ in range(max(layers.values(), default=-1) + 1)]
    for spot in layers.items():
        rows[spot[1]][spot] = None
    for pair in sorted(links):
        for spot in pair:
            rows[spot[1]][spot] = None
    return [list(row) for row in rows]


def _ordered(rows: list[list[Spot]], links: Collection[tuple[Spot, Spot]]) -> list[list[Spot]]:
    """The rows, each sorted by the mean position of its neighbours, in alternating passes down and up."""
    above, below = _neighbours(links)
    for sweep in range(SWEEPS):
        neighbours, order = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        places: dict[Spot, float] = {}
        for row in order:
            means = {spot: _mean([places[n] for n in neighbours.get(spot, ())], i) for i, spot in enumerate(row)}
            row.sort(key=means.__getitem__)
            places |= {spot: i * 100 / max(len(row), 1) for i, spot in enumerate(row)}
    return rows


def _across(
    rows: list[list[Spot]], links: Collection[tuple[Spot, Spot]], widths: Mapping[Spot, float], gap: float
) -> dict[Spot, float]:
    above, below = _neighbours(links)
    middles: dict[Spot, float] = {}
    for row in rows:
        middles |= _packed(row, [0.0] * len(row), widths, gap)
    for sweep in range(SWEEPS):
        neighbours, order = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for row in order:
            wished = [_mean([middles[n] for n in neighbours.get(spot, ())], middles[spot]) for spot in row]
            middles |= _packed(row, wished, widths, gap)
    left = min((middles[spot] - widths[spot] / 2 for spot in middles), default=0)
    return {spot: x - left + gap / 2 for spot, x in middles.items()}


def _packed(row: list[Spot], wished: list[float], widths: Mapping[Spot, float], gap: float) -> dict[Spot, float]:
    """Positions near the wished ones, within order and gaps: the mean of a pass to the right and one to the left."""
    apart = [(widths[a] + widths[b]) / 2 + gap for a, b in pairwise(row)]
    right, left = list(wished), list(wished)
    for i, distance in enumerate(apart):
        right[i + 1] = max(right[i + 1], right[i] + distance)
    for i in range(len(apart) - 1, -1, -1):
        left[i] = min(left[i], left[i + 1] - apart[i])
    return {spot: (a + b) / 2 for spot, a, b in zip(row, right, left, strict=True)}


def _down(
    rows: list[list[Spot]], layers: Mapping[Box, int], sizes: Mapping[Box, tuple[float, float]], gap: float
) -> tuple[list[float], float]:
    """The vertical centre of every row, and the lower end of the last one."""
    middles, y = [], gap / 2
    for layer, row in enumerate(rows):
        tallest = max((sizes[box][1] for box, _ in row if layers[box] == layer), default=0)
        middles.append(y + tallest / 2)
        y += tallest + gap
    return middles, y - gap / 2


def _route(a: Box, b: Box, layers: Mapping[Box, int], places: Mapping[Spot, Point]) -> tuple[Point, ...]:
    return (*(places[a, layer] for layer in range(layers[a], layers[b])), places[b, layers[b]])


def _neighbours(links: Collection[tuple[Spot, Spot]]) -> tuple[dict[Spot, list[Spot]], dict[Spot, list[Spot]]]:
    above: dict[Spot, list[Spot]] = {}
    below: dict[Spot, list[Spot]] = {}
    for a, b in sorted(links):
        above.setdefault(b, []).append(a)
        below.setdefault(a, []).append(b)
    return above, below


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise

"""Plots of what disputes take: by way and size, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from research.dispute_figures import Figure, Held, after, all_disputes, all_ways, figures, find, of_graph
from tallystick.core.plots import LIGHT, add_legend, dress, new_figure, write_png

SIZES: Final = (100, 1_000, 10_000)


GOAL: Final = 1.05
"""Of the challenger's work, in passes."""


INK, QUIET, COLOURS = LIGHT.ink, LIGHT.quiet, LIGHT.series
MARKERS: Final = dict(zip(COLOURS, "osD^vP", strict=True))
"""Lines differ in their marks as well as in colour."""


PHASES: Final = (
    "posting",
    "looking and contesting",
    "descending",
    "partitions",
    "choices",
    "revealing",
    "ruling",
    "taking the money out",
    "watching",
)


def draw_ways(held: Held, path: Path) -> None:
    """Four panels over the number of children: rounds, gas, data at the board, the challenger's operators."""
    canvas = new_figure(11.5, 7.6)
    panels = canvas.subplots(2, 2).ravel()
    _draw_by_size(panels[0], held, "dispute_rounds: {}/{}", 1, "rounds, mean")
    _draw_by_size(panels[1], held, "dispute_gas: {}/{}", 1e6, "gas of a dispute, millions")
    _draw_board(panels[2], held)
    _draw_work(panels[3], held)
    for panel in panels:
        _dress(panel)
    write_png(canvas, path)


def _draw_by_size(panel: Any, held: Held, name: str, unit: float, title: str) -> None:
    for size, colour in zip(SIZES, COLOURS, strict=False):
        found = [(ways, find(held, name.format(size, ways))["value"][0] / unit) for ways in all_ways(held)]
        _draw_line(panel, found, colour, f"V = {size:,}")
    panel.set_title(title, loc="left")


def _draw_board(panel: Any, held: Held) -> None:
    stored = figures(held, "dispute_board")[::3]
    for size, colour in zip(sorted({each["size"] for each in stored}), COLOURS, strict=False):
        mine = [each for each in stored if each["size"] == size]
        name = after(mine[0]["what"], "board, ").partition(", V =")[0]
        _draw_line(panel, [(each["ways"], each["value"][0]) for each in mine], colour, f"{name}, V = {size:,}")
    panel.margins(y=0.45)
    panel.set_title("data at the board, MB, mean", loc="left")


def _draw_work(panel: Any, held: Held) -> None:
    drift, same = of_graph(held, "drift "), of_graph(held, "work ")
    _draw_line(panel, [(each["ways"], each["value"][0]) for each in drift], COLOURS[1], "worst, other kernels")
    _draw_line(panel, [(each["ways"], each["value"][0]) for each in same], COLOURS[2], "worst, the prover's kernels")
    _draw_line(panel, [(each["ways"], each["mean"]) for each in drift], COLOURS[0], "mean, other kernels")
    panel.axhline(GOAL, color=QUIET, linewidth=1, linestyle="--")
    panel.annotate(f"goal {GOAL}", (1.1, GOAL), (2, 4), textcoords="offset points", color=QUIET, fontsize=9)
    panel.set_title(f"challenger's operators ÷ those of a pass, V = {drift[0]['size']:,}", loc="left")


def _draw_line(panel: Any, found: Sequence[tuple[int, float]], colour: str, label: str) -> None:
    """A line over N at equal distances."""
    values = [value for _, value in found]
    panel.plot(range(len(values)), values, color=colour, linewidth=2, marker=MARKERS[colour], markersize=5, label=label)
    panel.set_xticks(range(len(found)), [str(ways) for ways, _ in found])


def _dress(panel: Any) -> None:
    panel.set_xlabel("N, children of a partition")
    panel.set_ylim(bottom=0)
    dress(panel, panel.get_title(loc="left"))
    lines = sorted(panel.get_lines(), key=lambda line: -line.get_ydata()[0])
    named = [line for line in lines if not line.get_label().startswith("_")]
    add_legend(panel, handles=named)


def draw_time(held: Held, path: Path) -> None:
    """The phases of each whole dispute, in their order."""
    canvas = new_figure(11.5, 3.4)
    for panel, dispute in zip(canvas.subplots(1, 2), all_disputes(held), strict=True):
        _draw_phases(panel, dispute)
    write_png(canvas, path)


def _draw_phases(panel: Any, dispute: Figure) -> None:
    shown = [phase for phase in PHASES if dispute[phase][0] >= 0.005 * dispute["value"][0]]
    for place, phase in enumerate(reversed(shown)):
        value = dispute[phase][0]
        panel.barh(place, value, color=COLOURS[0], height=0.7)
        panel.annotate(f"{value:.2f} s", (value, place), (4, -3), textcoords="offset points", color=INK, fontsize=9)
    panel.set_yticks(range(len(shown)), list(reversed(shown)))
    panel.set_xlim(right=1.15 * max(dispute[phase][0] for phase in shown))
    dress(panel, after(dispute["what"], "payment over ") + ": CPU seconds")
    panel.spines["bottom"].set_visible(False)
    panel.grid(visible=False)
    panel.set_xticks([])

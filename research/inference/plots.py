"""Plots of the study: areas against bytes, and detection against tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tallystick.core.plots import LIGHT, add_legend, dress, new_figure, write_png

Entries = Sequence[Mapping[str, Any]]
HARD: Final = ("int8 weights", "int8 cache", "fp8 weights", "early exit", "signs flipped")
STROKES: Final = ("-", "--", "-.", ":", "-", "--")
WIDTHS: Final = (5.0, 4.2, 3.4, 2.6, 1.9, 1.2)
LOOKS: Final[list[dict[str, Any]]] = [
    {"color": colour, "linestyle": stroke, "linewidth": width}
    for colour, stroke, width in zip(LIGHT.series, STROKES, WIDTHS, strict=True)
]
"""Lines differ in stroke as well as in colour; of those that lie on each other, the first is the widest."""
TOKEN_WAYS: Final = ("honest", "int4 weights", "other temperature", "other seed", "cheap text", "1 token edited")


def plot_curves(entries: Entries, settings: Sequence[str], path: Path) -> None:
    """ROC curves of the cheats that are hardest to see, one panel for each setting."""
    figure = new_figure(3.4 * len(settings), 3.6)
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for panel, setting in zip(panels, settings, strict=True):
        for way, look in zip(HARD, LOOKS, strict=False):
            entry = next(each for each in entries if (each["way"], each["setting"]) == (way, setting))
            panel.plot(*zip(*entry["curve"], strict=True), label=way, **look)
        panel.set(xlabel="honest windows refused")
        dress(panel, f"{setting}\n{entry['bytes']:.2f} B/token")
    panels[0].set_ylabel("cheated windows refused")
    add_legend(panels[0], loc="lower right", handlelength=3)
    write_png(figure, path)


def plot_tokens(entries: Entries, path: Path) -> None:
    """The share of answers that the test of the sampler rejects, against the tokens it has seen."""
    settings = list(dict.fromkeys(each["setting"] for each in entries))
    figure = new_figure(4.0 * len(settings), 3.6)
    for panel, setting in zip(figure.subplots(1, len(settings), sharey=True), settings, strict=True):
        for way, look in zip(TOKEN_WAYS, LOOKS, strict=True):
            found = [each for each in entries if (each["way"], each["setting"]) == (way, setting)]
            shares = [each["rejected"] / each["answers"] for each in found]
            panel.plot([each["tokens"] for each in found], shares, marker="o", markersize=4, label=way, **look)
        panel.set(xlabel="tokens", xscale="log", ylim=(-0.03, 1.03))
        panel.set_xticks([each["tokens"] for each in found], [str(each["tokens"]) for each in found])
        panel.minorticks_off()
        dress(panel, setting)
    figure.axes[0].set_ylabel("answers rejected")
    add_legend(figure.axes[-1], handlelength=3)
    write_png(figure, path)

"""Plots of the study: areas against bytes, and detection against tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Entries = Sequence[Mapping[str, Any]]
HARD: Final = ("int8 weights", "int8 cache", "fp8 weights", "early exit", "signs flipped")
TOKEN_WAYS: Final = ("honest", "int4 weights", "other temperature", "other seed", "cheap text", "1 token edited")


def plot_curves(entries: Entries, settings: Sequence[str], path: Path) -> None:
    """ROC curves of the cheats that are hardest to see, one panel for each setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(settings), 3.6), layout="constrained")
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for panel, setting in zip(panels, settings, strict=True):
        for way in HARD:
            entry = next(each for each in entries if (each["way"], each["setting"]) == (way, setting))
            panel.plot(*zip(*entry["curve"], strict=True), label=way, linewidth=1.6)
        panel.set(title=f"{setting}\n{entry['bytes']:.2f} B/token", xlabel="honest windows refused")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("cheated windows refused")
    panels[0].legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def plot_tokens(entries: Entries, path: Path) -> None:
    """The share of answers that the test of the sampler rejects, against the tokens it has seen."""
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(each["setting"] for each in entries))
    figure = Figure(figsize=(4.0 * len(settings), 3.6), layout="constrained")
    for panel, setting in zip(figure.subplots(1, len(settings), sharey=True), settings, strict=True):
        for way in TOKEN_WAYS:
            found = [each for each in entries if (each["way"], each["setting"]) == (way, setting)]
            shares = [each["rejected"] / each["answers"] for each in found]
            panel.plot([each["tokens"] for each in found], shares, marker="o", markersize=4, label=way)
        panel.set(title=setting, xlabel="tokens", xscale="log", ylim=(-0.03, 1.03))
        panel.set_xticks([each["tokens"] for each in found], [str(each["tokens"]) for each in found])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    figure.axes[0].set_ylabel("answers rejected")
    figure.axes[-1].legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})

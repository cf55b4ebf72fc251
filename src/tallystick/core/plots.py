"""One look for every plot that is a PNG: colours, fonts, spines and grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tallystick.core.lazy import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DPI: Final = 130
TEXT_POINTS, TITLE_POINTS = 10, 11


@dataclass(frozen=True)
class Palette:
    """The colours of plots.

    `series` are those of Okabe and Ito (Color Universal Design, 2008), told apart with every kind of colour vision.
    `good` and `bad` stand for what agrees and what does not.
    """

    ground: str = "#ffffff"
    ink: str = "#1c2430"
    quiet: str = "#6b7886"
    region: str = "#d4ebe4"
    series: tuple[str, ...] = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3aa0d8")

    @property
    def good(self) -> str:
        """What agrees, or a first series: blue."""
        return self.series[0]

    @property
    def bad(self) -> str:
        """What disagrees, or a second series: vermilion."""
        return self.series[1]


LIGHT: Final = Palette()


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` × `height` inches; raises `UnavailableError` if matplotlib is not installed."""
    require("matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=LIGHT.ground)


def dress(axes: Axes, title: str = "") -> None:
    """Give a finished panel its look: a title on the left, two spines, a faint grid, a legend without a frame."""
    axes.set_facecolor(LIGHT.ground)
    axes.set_title(title or axes.get_title(), loc="left", color=LIGHT.ink, fontsize=TITLE_POINTS, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LIGHT.quiet)
    axes.tick_params(colors=LIGHT.ink, labelsize=TEXT_POINTS - 1, color=LIGHT.quiet)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=LIGHT.ink, fontsize=TEXT_POINTS)
    axes.grid(color=LIGHT.quiet, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def add_legend(axes: Axes, handles: Sequence[Any] | None = None, **placed: Any) -> None:
    """A legend without a frame, of `handles` or of everything that has a label; `placed` says where."""
    if handles is not None:
        placed["handles"] = list(handles)
    axes.legend(frameon=False, fontsize=TEXT_POINTS - 1, labelcolor=LIGHT.ink, **placed)


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure so that the same plot gives the same bytes."""
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})

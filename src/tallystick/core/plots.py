"""One look for every plot of the project: colours, fonts, spines and grid."""

from __future__ import annotations

import io
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
    """The colours of plots on a light or a dark ground.

    `series` are those of Okabe and Ito (Color Universal Design, 2008), told apart with every kind of colour vision.
    `good` and `bad` stand for what agrees and what does not, `shade` fills an area that holds nothing.
    """

    ground: str
    ink: str
    quiet: str
    shade: str
    region: str
    series: tuple[str, ...]

    @property
    def good(self) -> str:
        """What agrees, or a first series: blue."""
        return self.series[0]

    @property
    def bad(self) -> str:
        """What disagrees, or a second series: vermilion."""
        return self.series[1]


LIGHT: Final = Palette(
    ground="#ffffff",
    ink="#1c2430",
    quiet="#6b7886",
    shade="#eceff2",
    region="#d4ebe4",
    series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3aa0d8"),
)
DARK: Final = Palette(
    ground="#12161c",
    ink="#e6eaf0",
    quiet="#9aa7b5",
    shade="#1f2630",
    region="#12382e",
    series=("#56b4e9", "#f0803c", "#2fc79b", "#e0a3c5", "#e69f00", "#8ecbf0"),
)


def new_figure(width: float, height: float, palette: Palette = LIGHT) -> Figure:
    """An empty figure of `width` × `height` inches; raises `UnavailableError` if matplotlib is not installed."""
    require("matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=palette.ground)


def dress(axes: Axes, title: str = "", palette: Palette = LIGHT) -> None:
    """Give a finished panel its look: a title on the left, two spines, a faint grid, a legend without a frame."""
    axes.set_facecolor(palette.ground)
    axes.set_title(title or axes.get_title(), loc="left", color=palette.ink, fontsize=TITLE_POINTS, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(palette.quiet)
    axes.tick_params(colors=palette.ink, labelsize=TEXT_POINTS - 1, color=palette.quiet)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=palette.ink, fontsize=TEXT_POINTS)
    axes.grid(color=palette.quiet, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def add_legend(axes: Axes, palette: Palette = LIGHT, handles: Sequence[Any] | None = None, **placed: Any) -> None:
    """A legend without a frame, of `handles` or of everything that has a label; `placed` says where."""
    named = {} if handles is None else {"handles": list(handles)}
    axes.legend(frameon=False, fontsize=TEXT_POINTS - 1, labelcolor=palette.ink, **named, **placed)


def write_png(figure: Figure, path: Path) -> None:
    """Write a figure so that the same plot gives the same bytes."""
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})


def png_bytes(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, metadata={"Software": None})
    return picture.getvalue()

"""The forgeries of `tally attack` whose forger can be played in a dispute: it opens what it really computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallystick.attacks.disputes.wrong_rate import higher_rate_trace
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.disputes.game.protocols import Trace

FORGERS: Final[dict[str, Callable[[Path, Path], Trace]]] = {"wrong-rate": higher_rate_trace}


def forger_of(name: str) -> Callable[[Path, Path], Trace]:
    """What makes the trace of a forged run, in a folder for its files; raises `UsageError` for an unknown name."""
    if name not in FORGERS:
        raise UsageError(f"--forger {name}: there are {', '.join(FORGERS)}")
    return FORGERS[name]

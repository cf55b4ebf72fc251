"""What ends a command from outside: `kill` unwinds it as Ctrl-C does, so that what it holds is put away."""

from __future__ import annotations

import signal
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived; no error, so nothing that a command catches stops it."""


def listen() -> None:
    """Raise `Terminated` in the main thread when SIGTERM arrives."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut short what the first one began
    raise Terminated

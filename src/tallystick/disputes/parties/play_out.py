"""Several parties in one process, with a clock that moves only when all of them wait.

For tests and demonstrations; `play_out` drives players at any coordinator whose clock can be set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tallystick.disputes.parties.player import Player
from tallystick.errors import UnavailableError

STEPS_MAX = 1_000_000


@dataclass
class Clock:
    """A clock that is set by hand, in seconds."""

    now: int = 1_000_000

    def __call__(self) -> int:
        """The time in seconds."""
        return self.now

    def advance(self, second: int) -> None:
        """Set the time to `second`, unless it is later already."""
        self.now = max(self.now, second)


def play_out(
    players: Sequence[Player], advance: Callable[[int], None], is_over: Callable[[], bool] = lambda: False
) -> None:
    """Let every player move in turn until none of them will move again, or until `is_over`.

    When all of them wait, `advance` sets the clock to the next second at which one of them may have something to do.
    Raises `UnavailableError` if that does not end within `STEPS_MAX` rounds.
    """
    for _ in range(STEPS_MAX):
        if is_over():
            return
        moved = [player.step() for player in players]
        if any(moved):
            continue
        wakes = [second for player in players if (second := player.wakes()) is not None]
        if not wakes:
            return
        advance(min(wakes))
    raise UnavailableError(f"the players were still at it after {STEPS_MAX} rounds")

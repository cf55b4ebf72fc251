"""A task of a party: a move to compute, and how long there is for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from tallystick.disputes.game.moves import Move
from tallystick.disputes.parties.game_view import GameView
from tallystick.errors import TallyError

MISTAKES: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(MemoryError, RuntimeError, TypeError, ValueError),
)
"""What a defect of this program raises over unforeseen files: it may cost one dispute, and never the others."""
FAILURES: Final = (TallyError, OSError, *MISTAKES)


class AnswerPending(Exception):  # noqa: N818 - nothing went wrong
    """Raised by an answer that another process has begun to compute."""


def never() -> bool:
    """The answer is computed in this process."""
    return False


@dataclass(frozen=True)
class PartyTask:
    """Something to do under a name that is the same after a restart.

    `seconds` are left for it, `None` if no clock runs; `answer` computes the move, `None` for no move. A task that is
    `kept` is answered once: its move is stored before it is made, and made again unchanged after a crash. A kept task
    that is `single` has no turn number, so the rules would take its move twice: it is not repeated before it is clear
    that the first one did not arrive. While a task `is_pending` another process computes it, and it is not asked again;
    the answer that starts that process raises `AnswerPending`.
    """

    key: str
    seconds: int | None
    answer: Callable[[], Move | None]
    kept: bool = False
    single: bool = False
    is_pending: Callable[[], bool] = never


class PartyRole(Protocol):
    """What one party has to do, given what can be seen."""

    def tasks(self, view: GameView) -> Iterable[PartyTask]:
        """The tasks that are open now; computes no answer yet."""
        ...


def is_nearly_over(seconds: int | None, clock: int) -> bool:
    """Whether at most a quarter of `clock` is left, so that a party no longer waits for what failed before."""
    return seconds is not None and seconds <= max(1, clock // 4)

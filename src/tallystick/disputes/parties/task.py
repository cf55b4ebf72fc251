"""What a role finds to do: a move to think out, and how long there is for it."""

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
"""What a mistake of our own raises over files that nobody foresaw: it costs one dispute, never the others."""
FAILURES: Final = (TallyError, OSError, *MISTAKES)


class AnswerPending(Exception):  # noqa: N818 - nothing went wrong
    """Raised by an answer that another process has begun to think out."""


def here() -> bool:
    """Nothing is thought out elsewhere."""
    return False


@dataclass(frozen=True)
class PartyTask:
    """Something to do under a name that is the same after a restart.

    `seconds` are left for it, `None` if no clock runs; `answer` thinks out the move, `None` for no move. A task that
    is `kept` is answered once: its move is written down before it is made, and made again as it stands there after a
    crash. A kept one that is `single` carries no turn, and is not repeated before it is clear that it did not arrive.
    While a task `is_pending` another process thinks it out, and it is not asked again; what begins this raises
    `AnswerPending`.
    """

    key: str
    seconds: int | None
    answer: Callable[[], Move | None]
    kept: bool = False
    single: bool = False
    is_pending: Callable[[], bool] = here


class PartyRole(Protocol):
    """What one party has to do, given what can be seen."""

    def tasks(self, view: GameView) -> Iterable[PartyTask]:
        """The tasks that are open now; thinks nothing out yet."""
        ...


def is_nearly_over(seconds: int | None, clock: int) -> bool:
    """Whether so little of `clock` is left that a party stops hoping, and makes the move of last resort."""
    return seconds is not None and seconds <= max(1, clock // 4)

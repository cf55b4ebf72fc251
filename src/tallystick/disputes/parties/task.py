"""A task of a party: a move to compute, and the time that is left for it."""

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
"""Errors that a defect of this program may raise over unforeseen files; they may cost one dispute, never the others."""
FAILURES: Final = (TallyError, OSError, *MISTAKES)


class AnswerPending(Exception):  # noqa: N818 - nothing went wrong
    """Raised if another process has begun to compute the answer."""


def never() -> bool:
    """Never pending: the answer is computed in this process."""
    return False


@dataclass(frozen=True)
class PartyTask:
    """A task with a key that is the same after a restart.

    `seconds` are left for it, `None` if no clock runs. `answer` computes the move, `None` for no move. A `kept` task is
    answered once: its move is stored before it is made, and made again unchanged after a crash. The move of a `single`
    task has no turn number, so the rules would accept it twice: it is not repeated before it is clear that the first
    one did not arrive. While a task `is_pending`, another process computes its answer, and `answer` is not called; the
    call that starts that process raises `AnswerPending`.
    """

    key: str
    seconds: int | None
    answer: Callable[[], Move | None]
    kept: bool = False
    single: bool = False
    is_pending: Callable[[], bool] = never


class PartyRole(Protocol):
    """The tasks of a party in one function, such as answering or appealing."""

    def tasks(self, view: GameView) -> Iterable[PartyTask]:
        """The open tasks; their answers are not computed yet."""
        ...


def is_nearly_over(seconds: int | None, clock: int) -> bool:
    """Whether at most a quarter of `clock` is left, so that a party no longer waits and tries again."""
    return seconds is not None and seconds <= max(1, clock // 4)

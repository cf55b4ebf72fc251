"""The interface of every coordinator: its rules and clock, the accepted moves in order, and the submission of moves.

The accepted moves determine all of a coordinator's state: every party applies them by the same game.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tallystick.commitments.digests import Digest
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import State
from tallystick.errors import UnavailableError


@dataclass(frozen=True)
class MoveEntry:
    """An accepted move: its number in the coordinator's order, and the second at which it took effect."""

    number: int
    time: int
    move: Move


class NotSentError(UnavailableError):
    """A move was not sent, for a reason that lies here: it can be made again at once when that is mended."""


class Coordinator(Protocol):
    """One party's connection to a coordinator; it signs moves as `party`."""

    @property
    def party(self) -> str:
        """The party that moves through this connection."""
        ...

    @property
    def rules(self) -> Rules:
        """The rules; they never change."""
        ...

    def now(self) -> int:
        """The coordinator's time in seconds; parties never use their own clock."""
        ...

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        """The accepted moves from number `start` on that can no longer be undone."""
        ...

    def submit(self, move: Move) -> None:
        """Make a move; returns when the coordinator has accepted it, or certainly has it pending.

        Raises:
            RuleError: the rules do not allow it now.
            UnavailableError: the coordinator cannot be reached; it is unknown whether it has the move.
            NotSentError: it certainly does not have the move.
        """
        ...


class Board(Protocol):
    """Keeps data under its blob digest, so that no party can withhold the data of its moves."""

    def put(self, data: bytes) -> Digest:
        """Keep `data`; returns its blob digest. Raises `UnavailableError`, and `UsageError` if it is too large."""
        ...

    def get(self, name: Digest) -> bytes:
        """The bytes under a digest, checked against it; raises `UnavailableError` if they are not there."""
        ...


def replayed(rules: Rules, entries: Iterable[MoveEntry]) -> State:
    """The state to which accepted moves lead."""
    state = State(rules)
    for entry in entries:
        state = apply(state, entry.move, entry.time)
    return state

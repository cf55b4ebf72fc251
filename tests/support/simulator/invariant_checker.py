"""Who looks at every move that takes effect, and what a place for moves offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tallystick.disputes.coordinators.coordinator import MoveEntry, replayed
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Rules, State

Published = Callable[[State, State], None]


class BrokenError(AssertionError):
    """Something that has to hold did not: a flaw of the game, or of the simulation."""


class MoveObserver(Protocol):
    """Who looks at every move."""

    def accepted(self, before: State, move: Move, now: int, after: State) -> None:
        """A move took effect, perhaps not for good."""
        ...

    def refused(self, move: Move, now: int, code: str) -> None:
        """A move was refused."""
        ...

    def final(self, entry: MoveEntry, before: State, after: State) -> None:
        """A move took effect for good."""
        ...

    def happened(self, what: str) -> None:
        """Something else happened that is worth counting."""
        ...


class Place(Protocol):
    """Where moves go."""

    head: State

    def submit(self, move: Move) -> None:
        """Send a move; nobody answers."""
        ...

    def entries(self) -> list[MoveEntry]:
        """The accepted moves that can no longer be undone."""
        ...


def accepted_again(rules: Rules, entries: Sequence[MoveEntry], final: State) -> None:
    """Raise `BrokenError` unless the accepted moves lead to this very state."""
    if replayed(rules, entries) != final:
        raise BrokenError("the accepted moves lead to another state")

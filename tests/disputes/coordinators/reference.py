"""The game itself as a coordinator, in memory: what all others are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tallystick.disputes.coordinators.coordinator import Board, Coordinator
from tests.disputes.coordinators.conformance import NAMES, MakeRules
from tests.support.in_memory import InMemoryCoordinator, MemoryBoard


@dataclass
class InMemoryWorld:
    """A coordinator in memory and its board."""

    coordinator: InMemoryCoordinator
    _board: MemoryBoard = field(default_factory=MemoryBoard)

    def party(self, name: str) -> str:
        return party_of(name)

    def connect(self, name: str) -> Coordinator:
        return self.coordinator.connect(party_of(name))

    def board(self, name: str) -> Board:
        return self._board

    def advance(self, seconds: int) -> None:
        self.coordinator.clock.advance(self.coordinator.clock() + seconds)


def party_of(name: str) -> str:
    return f"{1 + NAMES.index(name):064x}"


@contextmanager
def found(make_rules: MakeRules) -> Iterator[InMemoryWorld]:
    """A fresh coordinator."""
    yield InMemoryWorld(InMemoryCoordinator(make_rules(party_of)))

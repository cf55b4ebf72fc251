"""The game itself as a coordinator, in memory: what all others are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tallystick.disputes.coordinators.coordinator import Board, Coordinator
from tallystick.disputes.parties.table import MemoryBoard, Table
from tests.disputes.coordinators.conformance import NAMES, MakeRules


@dataclass
class TableWorld:
    """A table and its board."""

    table: Table
    _board: MemoryBoard = field(default_factory=MemoryBoard)

    def party(self, name: str) -> str:
        return party_of(name)

    def connect(self, name: str) -> Coordinator:
        return self.table.seat(party_of(name))

    def board(self, name: str) -> Board:
        return self._board

    def advance(self, seconds: int) -> None:
        self.table.clock.advance(self.table.clock() + seconds)


def party_of(name: str) -> str:
    return f"{1 + NAMES.index(name):064x}"


@contextmanager
def found(make_rules: MakeRules) -> Iterator[TableWorld]:
    """A fresh table."""
    yield TableWorld(Table(make_rules(party_of)))

"""A coordinator and a board in memory, for tests and simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tallystick.core.digests import Digest, digest
from tallystick.core.errors import RuleError, UnavailableError
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import Rules, State
from tallystick.disputes.parties.programs import Clock


@dataclass
class MemoryBoard:
    """A board in memory."""

    blobs: dict[Digest, bytes] = field(default_factory=dict)

    def put(self, data: bytes) -> Digest:
        """Keep `data`."""
        name = digest("blob", data)
        self.blobs[name] = data
        return name

    def get(self, name: Digest) -> bytes:
        """The bytes under a digest."""
        if name not in self.blobs:
            raise UnavailableError(f"{name}: not at the board")
        return self.blobs[name]


@dataclass
class InMemoryCoordinator:
    """A coordinator in memory; parties see a move `finality` seconds after it was accepted."""

    rules: Rules
    clock: Clock = field(default_factory=Clock)
    finality: int = 0
    entries: list[MoveEntry] = field(default_factory=list)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = State(self.rules)

    def connect(self, party: str) -> InMemoryConnection:
        """The connection of one party."""
        return InMemoryConnection(self, party)

    def accept(self, move: Move) -> None:
        """Accept a move or raise `RuleError`."""
        self.state = apply(self.state, move, self.clock())
        self.entries.append(MoveEntry(len(self.entries), self.clock(), move))


@dataclass(frozen=True)
class InMemoryConnection:
    """One party's connection to such a coordinator; implements `Coordinator`."""

    coordinator: InMemoryCoordinator
    party: str

    @property
    def rules(self) -> Rules:
        """The rules."""
        return self.coordinator.rules

    def now(self) -> int:
        """The clock of the coordinator."""
        return self.coordinator.clock()

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        """The accepted moves that are final."""
        last = self.coordinator.clock() - self.coordinator.finality
        return [entry for entry in self.coordinator.entries[start:] if entry.time <= last]

    def submit(self, move: Move) -> None:
        """Make a move as this party; raises `RuleError`."""
        if move.actor != self.party:
            raise RuleError("actor", "nobody moves for another")
        self.coordinator.accept(move)

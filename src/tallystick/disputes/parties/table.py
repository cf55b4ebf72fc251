"""A table at which several players sit in one process: a coordinator and a board in memory, and a clock that waits.

For tests, simulations and demonstrations; `play_out` drives players at any coordinator whose clock can be set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tallystick.commitments.digests import Digest, digest
from tallystick.disputes.coordinators.coordinator import MoveEntry
from tallystick.disputes.game.game import apply
from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import State
from tallystick.disputes.parties.player import Player
from tallystick.errors import RuleError, UnavailableError

STEPS_MAX = 1_000_000


@dataclass
class Clock:
    """A time that passes only when everybody waits."""

    now: int = 1_000_000

    def __call__(self) -> int:
        """The second that it is."""
        return self.now

    def advance(self, second: int) -> None:
        """Let time pass until `second`; it never goes back."""
        self.now = max(self.now, second)


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
class Table:
    """A coordinator in memory; `seat` connects a party to it. Moves are shown to parties `finality` seconds later."""

    rules: Rules
    clock: Clock = field(default_factory=Clock)
    finality: int = 0
    entries: list[MoveEntry] = field(default_factory=list)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = State(self.rules)

    def seat(self, party: str) -> Seat:
        """The connection of one party."""
        return Seat(self, party)

    def take(self, move: Move) -> None:
        """Accept a move or raise `RuleError`."""
        self.state = apply(self.state, move, self.clock())
        self.entries.append(MoveEntry(len(self.entries), self.clock(), move))


@dataclass(frozen=True)
class Seat:
    """One party's connection to a table; implements `Coordinator`."""

    table: Table
    party: str

    @property
    def rules(self) -> Rules:
        """The rules."""
        return self.table.rules

    def now(self) -> int:
        """The table's clock."""
        return self.table.clock()

    def entries(self, start: int = 0) -> Sequence[MoveEntry]:
        """The accepted moves that are final."""
        last = self.table.clock() - self.table.finality
        return [entry for entry in self.table.entries[start:] if entry.time <= last]

    def submit(self, move: Move) -> None:
        """Make a move as this party; raises `RuleError`."""
        if move.actor != self.party:
            raise RuleError("actor", "nobody moves for another")
        self.table.take(move)


def play_out(
    players: Sequence[Player], advance: Callable[[int], None], is_over: Callable[[], bool] = lambda: False
) -> None:
    """Let every player move in turn until none of them will move again, or `is_over`.

    Whenever all wait, `advance` lets time pass until the next second at which one of them may have something to do.
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

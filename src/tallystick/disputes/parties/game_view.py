"""A party's view of a coordinator: the state after its accepted moves, and the moves of each dispute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import encode
from tallystick.disputes.coordinators.coordinator import Coordinator, MoveEntry
from tallystick.disputes.game.game import MoveOption, apply, next_moves
from tallystick.disputes.game.moves import Descend, Move, Partition, Reveal
from tallystick.disputes.game.pausing import game_time
from tallystick.disputes.game.protocols import Descended
from tallystick.disputes.game.rules import Rules
from tallystick.disputes.game.state import Dispute, PostedClaim, State
from tallystick.errors import ProofError, RuleError, UnavailableError


@dataclass(frozen=True)
class GameView:
    """A state at the coordinator's time `now`, for `party`; `moves` are those of each dispute, in order."""

    party: str
    state: State
    now: int
    moves: Mapping[int, Sequence[MoveEntry]]

    @cached_property
    def options(self) -> tuple[MoveOption, ...]:
        """What this party may do in open disputes."""
        return next_moves(self.state, self.party, self.now)

    @property
    def turns(self) -> Mapping[int, int]:
        """The disputes in which this party's clock runs, and the seconds that it has left."""
        return {each.dispute: each.seconds for each in self.options if each.seconds is not None}

    @property
    def rules(self) -> Rules:
        """The rules of the coordinator."""
        return self.state.rules

    @property
    def time(self) -> int:
        """Game time in seconds, which pauses stop."""
        return game_time(self.state, self.now)

    def is_in(self, number: int) -> bool:
        """Whether this party is prover or challenger of a dispute, a member of its committee, referee or beacon."""
        dispute = self.state.disputes[number]
        drawn = dispute.rounds[-1].drawn if dispute.rounds else ()
        office = (self.rules.referee, self.rules.beacon)
        return self.party in (self.claim_of(dispute).prover, dispute.challenger, *office, *drawn)

    def claim_of(self, dispute: Dispute) -> PostedClaim:
        """The claim that a dispute is about."""
        return self.state.claims[dispute.claim]

    def data_of(self, number: int) -> tuple[Digest, ...]:
        """The manifests of the prover's moves in a dispute, in order."""
        return tuple(move.data for move in self._openings(number))

    def descended(self, number: int) -> Descended | None:
        """The move that opened the operators of a dispute, among those of `data_of`."""
        made = enumerate(self._openings(number))
        return next((Descended(turn, move.leaf) for turn, move in made if isinstance(move, Descend)), None)

    def _openings(self, number: int) -> Iterator[Partition | Descend | Reveal]:
        made = (entry.move for entry in self.moves.get(number, ()))
        return (move for move in made if isinstance(move, Partition | Descend | Reveal))

    def allows(self, move: Move) -> bool:
        """Whether the rules take `move` now."""
        try:
            apply(self.state, move, self.now)
        except RuleError:
            return False
        return True

    def name_of(self, number: int) -> str:
        """A name of a dispute for files that outlive a program, made of its parties, claim and number."""
        dispute = self.state.disputes[number]
        return f"{number}-{_short([*_identity(self.claim_of(dispute)), dispute.challenger, str(number)])}"


def claim_name(claim: PostedClaim) -> str:
    """A name of a claim for files that outlive a program, made of its content and its prover."""
    return _short(_identity(claim))


@dataclass
class GameFollower:
    """Reads a coordinator's accepted moves as they come, and applies each of them once."""

    coordinator: Coordinator
    state: State = field(init=False)
    count: int = 0
    moves: dict[int, list[MoveEntry]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.state = State(self.coordinator.rules)

    def look(self) -> GameView:
        """Read the new moves, and give the view after them.

        Raises:
            UnavailableError: the coordinator does not answer.
            ProofError: its moves do not follow its rules.
        """
        try:
            for entry in self.coordinator.entries(self.count):
                self._fold(entry)
            return GameView(self.coordinator.party, self.state, self.coordinator.now(), self.moves)
        except UnavailableError:
            # a reorganisation may have undone final moves during the outage: read all moves again
            self.state, self.count, self.moves = State(self.coordinator.rules), 0, defaultdict(list)
            raise

    def _fold(self, entry: MoveEntry) -> None:
        if entry.number != self.count:
            raise ProofError(f"the coordinator gave move {entry.number} where {self.count} comes next")
        try:
            self.state = apply(self.state, entry.move, entry.time)
        except RuleError as error:
            raise ProofError(f"the coordinator took move {entry.number} against its rules: {error}") from None
        self.count += 1
        number = getattr(entry.move, "dispute", None)
        if number is not None:
            self.moves[number].append(entry)


def _identity(claim: PostedClaim) -> list[str]:
    return [claim.prover, claim.root, str(claim.size), str(claim.levels), claim.statement, claim.seal]


def _short(parts: list[str]) -> str:
    return digest("dispute", encode(list(parts))).removeprefix("sha256:")[:16]

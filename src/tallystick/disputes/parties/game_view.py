"""A party's view of a coordinator: state, moves and the files they refer to, and who is owed what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import MalformedError, ProofError, RuleError, UnavailableError, UsageError
from tallystick.disputes.coordinators.coordinator import Board, Coordinator, MoveEntry, fetch, publish
from tallystick.disputes.game.context import game_time, mover, time_left, with_expired_pause_lifted
from tallystick.disputes.game.game import MoveOption, apply, next_moves
from tallystick.disputes.game.moves import Descend, Move, Partition, Reveal, Withdraw, value_of
from tallystick.disputes.game.protocols import Descended, DisputeView, Files
from tallystick.disputes.game.state import Credit, Dispute, Phase, PostedClaim, Rules, State, Status

# A party's view of a coordinator: the state after its accepted moves, and the moves of each dispute.


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

    @property
    def pause_end(self) -> int | None:
        """When the present pause ends by itself; `None` while game time runs."""
        since = with_expired_pause_lifted(self.state, self.now).pausing.since
        return None if since is None else since + self.rules.pause_max

    def roles_in(self, number: int) -> Iterator[str]:
        """The roles of this party in a dispute, as `PHASES` names them; `beacon` and `member` too."""
        dispute = self.state.disputes[number]
        named = {"prover": self.claim_of(dispute).prover, "challenger": dispute.challenger}
        offices = {"referee": self.rules.referee, "beacon": self.rules.beacon}
        yield from (role for role, party in (named | offices).items() if party == self.party)
        if dispute.rounds and self.party in dispute.rounds[-1].drawn:
            yield "member"
        if dispute.fault is not None and named.get(dispute.fault) == self.party:
            yield "loser"

    def is_in(self, number: int) -> bool:
        """Whether this party is prover or challenger of a dispute, a member of its committee, referee or beacon."""
        return any(self.roles_in(number))

    def awaited(self) -> Iterator[Turn]:
        """What open disputes ask of this party now: a turn for each task that `PHASES` gives to one of its roles."""
        if self.pause_end is not None:
            return
        turns = self.turns
        for number, dispute in enumerate(self.state.disputes):
            claim = self.claim_of(dispute)
            has_clock = mover(claim, dispute) is not None
            seconds = turns.get(number) if has_clock else max(dispute.deadline - self.time, 0)
            if claim.status is Status.OPEN and seconds is not None:
                tasks = (PHASES[dispute.phase].tasks.get(role, "") for role in self.roles_in(number))
                yield from (Turn(self, number, task, seconds) for task in " ".join(tasks).split())

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


class PhaseRow(NamedTuple):
    """One phase of a dispute: who moves and what is waited for, for people, and the tasks of each role."""

    mover: str
    awaited: str
    tasks: Mapping[str, str]


# fmt: off
PHASES: Final[Mapping[Phase, PhaseRow]] = {
    Phase.PARTITION:  PhaseRow("prover",     "the prover's move",                        {"prover": "answer"}),
    Phase.CHOOSE:     PhaseRow("challenger", "the challenger's move",                    {"challenger": "choice"}),
    Phase.LEAF:       PhaseRow("prover",     "the prover's move",                        {"prover": "answer"}),
    Phase.RULING:     PhaseRow("referee",    "the referee's ruling",
                               {"prover": "plea", "challenger": "name plea", "referee": "rule"}),
    Phase.DRAWING:    PhaseRow("beacon",     "the nonce that draws the committee",       {"challenger": "name"}),
    Phase.COMMITTING: PhaseRow("committee",  "the committee's votes",                    {"member": "vote disclose"}),
    Phase.REVEALING:  PhaseRow("committee",  "the committee to disclose its votes",      {"member": "disclose"}),
    Phase.APPEALABLE: PhaseRow("loser",      "an appeal",                                {"loser": "appeal"}),
    Phase.SETTLED:    PhaseRow("nobody",     "",                                         {}),
}
# fmt: on
"""Who answers with what in each phase; the tasks are those of `roles`, several with a blank between them."""


@dataclass(frozen=True)
class Turn:
    """One task of this party in an open dispute; `seconds` are left for it."""

    view: GameView
    number: int
    task: str
    seconds: int

    @property
    def dispute(self) -> Dispute:
        """The dispute."""
        return self.view.state.disputes[self.number]

    @property
    def name(self) -> str:
        """The name of the dispute for files that outlive a program."""
        return self.view.name_of(self.number)


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


# The files that a dispute's moves refer to, as folders: each is fetched from the board once and kept.


@dataclass(frozen=True)
class BoardCache:
    """A board, and the folder for files from it. The prover of a claim put all of them there."""

    board: Board
    folder: Path

    def publish(self, files: Files) -> Digest:
        """Put files at the board; returns the digest by which a move names them."""
        return publish(files, self.board)

    def folder_of(self, name: Digest) -> Path:
        """A folder with the files that a move or a claim names.

        Raises:
            MalformedError: the bytes under the digest are no valid manifest.
            UnavailableError: the files cannot be fetched now.
        """
        try:
            return fetch(name, self.board, self.folder / name.removeprefix("sha256:"))
        except ProofError as error:  # other bytes under a digest are the board's fault, not the prover's
            raise UnavailableError(str(error)) from None

    def answered(self, view: GameView, number: int) -> DisputeView:
        """A dispute with all files that the prover put at the board for it; raises as `folder_of` does."""
        dispute = view.state.disputes[number]
        claim = view.claim_of(dispute)
        turns = tuple(self.folder_of(data) for data in view.data_of(number))
        return DisputeView(claim, number, dispute, self.folder_of(claim.statement), turns, view.descended(number))

    def lacks(self, view: GameView, number: int) -> bool:
        """Whether the board answers but lacks files of a dispute, so that the prover withheld them."""
        dispute = view.state.disputes[number]
        return self.is_missing(view.claim_of(dispute).statement) or any(map(self.is_missing, view.data_of(number)))

    def is_missing(self, name: Digest) -> bool:
        """Whether the board answers but lacks files that `name` lists."""
        try:
            self.folder_of(name)
        except UnavailableError:
            return self._is_answering()
        except MalformedError:
            return False  # the bytes are there, although they are no manifest
        return False

    def _is_answering(self) -> bool:
        try:
            return self.board.get(self.board.put(b"")) == b""
        except UsageError:
            return True  # it answers that it keeps nothing for this party
        except UnavailableError:
            return False


# When something becomes possible without a move: a clock or window ends, or a credit can be withdrawn.


def next_instant(state: State, now: int) -> int | None:
    """The first second after `now` at which a window, clock, pause or waiting time ends; `None` if there is none."""
    return min((each for each in _instants(state, now) if each > now), default=None)


def _instants(state: State, now: int) -> Iterator[int]:
    yield from (credit.ripe for credits in state.owed.values() for credit in credits)
    if state.pausing.since is not None:
        yield state.pausing.since + state.rules.pause_max
        return
    behind = now - game_time(state, now)
    yield from (claim.deadline + behind for claim in state.claims if claim.status is Status.OPEN)
    for dispute in state.disputes:
        if dispute.phase is not Phase.SETTLED:
            yield from (each + behind for each in _ends(state, dispute))


def _ends(state: State, dispute: Dispute) -> Iterator[int]:
    """When the clocks and windows of an open dispute end, in game time."""
    if mover(state.claims[dispute.claim], dispute) is not None:
        yield dispute.clocks.since + time_left(dispute, dispute.clocks.since)
    else:
        yield dispute.deadline
        if dispute.phase is Phase.COMMITTING:
            yield dispute.deadline + state.rules.reveal_window


# Who is owed what: the money of each party, from the accepted moves.


@dataclass(frozen=True)
class PartyAccount:
    """The money of one party: what it paid in, took out, and is owed, and what open claims, disputes and stakes hold.

    `roles` say what it is: `prover of claim 0`, `challenger in dispute 0`, `referee`, ….
    """

    party: str
    roles: tuple[str, ...]
    paid_in: int
    taken_out: int
    held: int
    credits: tuple[Credit, ...]

    @property
    def owed(self) -> int:
        """What the coordinator owes it."""
        return sum(each.amount for each in self.credits)

    @property
    def gained(self) -> int:
        """What it has more than it began with, when everything held comes back."""
        return self.taken_out + self.owed + self.held - self.paid_in

    def to_json(self) -> dict[str, Json]:
        """All fields, with the time from which the last credit can be taken out."""
        return {
            "gained": self.gained,
            "held": self.held,
            "owed": self.owed,
            "paid_in": self.paid_in,
            "party": self.party,
            "payable": max((each.ripe for each in self.credits), default=None),
            "roles": list(self.roles),
            "taken_out": self.taken_out,
        }


def accounts(rules: Rules, entries: Iterable[MoveEntry]) -> list[PartyAccount]:
    """The accounts of all parties that have paid in or are owed something, in the order of their first moves."""
    state, paid, taken = State(rules), Counter[str](), Counter[str]()
    for entry in entries:
        before, state = state, apply(state, entry.move, entry.time)
        paid[entry.move.actor] += value_of(entry.move)
        if isinstance(entry.move, Withdraw):
            taken[entry.move.actor] += state.paid_out - before.paid_out
    held = Counter[str]()
    for party, amount in _held(state):
        held[party] += amount
    parties = dict.fromkeys((*paid, *state.owed))
    return [
        PartyAccount(
            party, tuple(_roles(state, party)), paid[party], taken[party], held[party], state.owed.get(party, ())
        )
        for party in parties
        if paid[party] or party in state.owed
    ]


def _held(state: State) -> Iterator[tuple[str, int]]:
    """Bonds, fees and stakes that the coordinator holds, by who paid them."""
    for claim in state.claims:
        if claim.status is Status.OPEN:
            yield claim.prover, claim.bond
    for dispute in state.disputes:
        if dispute.phase is not Phase.SETTLED:
            yield dispute.challenger, dispute.bond + dispute.deposit
            yield from ((each.party, each.bond) for each in dispute.appeals)
    for party, member in state.members.items():
        yield party, member.stake


def _roles(state: State, party: str) -> Iterator[str]:
    yield from (f"prover of claim {number}" for number, each in enumerate(state.claims) if each.prover == party)
    disputes = enumerate(state.disputes)
    yield from (f"challenger in dispute {number}" for number, each in disputes if each.challenger == party)
    if party in state.members:
        yield "member"
    rules = state.rules
    named = {"referee": rules.referee, "beacon": rules.beacon, "treasury": rules.treasury}
    yield from (role for role, name in named.items() if name == party)

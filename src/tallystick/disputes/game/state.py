"""The rules of one coordinator, its state as frozen data, how ranges are cut, and what holds after every move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, Self, TypeAlias

from pydantic import Field, model_validator

from tallystick.core.digests import Digest
from tallystick.core.documents import Document
from tallystick.verdicts.verdict import Fault

# The rules of one coordinator: bonds, clocks and windows, fixed when it is set up and the same for everybody.

WAYS_MAX: Final = 32
MEMBERS_MAX: Final = 255
LEAVES_MAX: Final = 1 << 32
PROOF_MAX: Final = 64
MONEY_MAX: Final = (1 << 53) - 1
RESULT_MAX: Final = (1 << 32) - 1
ELEMENT_MAX: Final = (1 << 48) - 1

Party = Annotated[str, Field(pattern=r"^(0x[0-9a-f]{40}|[0-9a-f]{64})$")]
"""The name of a party: the Ethereum address or the public Ed25519 key with which it signs its moves."""
Money = Annotated[int, Field(ge=0, le=MONEY_MAX)]
"""An amount in the coordinator's unit: gwei on Ethereum."""
Seconds = Annotated[int, Field(ge=1, le=1 << 32)]
Permille = Annotated[int, Field(ge=0, le=1000)]

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


class Rules(Document):
    """The rules that all parties accept before the first claim.

    `reward` is the share of the prover's bond, in thousandths, for the challenger that was right. The rest goes to the
    treasury, so that a prover that accuses itself loses money. Without a `referee` no single party rules. Without a
    `beacon` anybody may bring the nonce (a contract draws it itself). Without a `guardian` nobody can pause.
    """

    prover_bond: Money = 1_000_000
    challenger_bond: Money = 150_000
    appeal_bond: Money = 100_000
    stake: Money = 200_000
    vote_fee: Money = 2_000
    reward: Permille = 500
    challenge_window: Seconds = 7 * DAY
    clock: Seconds = 2 * DAY
    extension: Seconds = 3 * HOUR
    referee_window: Seconds = HOUR
    vote_window: Seconds = DAY
    reveal_window: Seconds = DAY
    appeal_window: Seconds = DAY
    withdrawal_delay: Seconds = DAY
    pause_max: Seconds = 3 * DAY
    pause_rest: Seconds = 14 * DAY
    ways: Annotated[int, Field(ge=2, le=WAYS_MAX)] = 16
    committee: Annotated[int, Field(ge=1, le=63)] = 7
    appeals: Annotated[int, Field(ge=0, le=4)] = 2
    members: Annotated[tuple[Party, ...], Field(max_length=MEMBERS_MAX)] = ()
    referee: Party | None = None
    beacon: Party | None = None
    planter: Party | None = None
    guardian: Party | None = None
    treasury: Party

    @model_validator(mode="after")
    def _make_sense(self) -> Self:
        if len(set(self.members)) < len(self.members):
            raise ValueError("members: the same member twice")
        if self.deposit > self.prover_bond:
            raise ValueError("prover_bond: smaller than the fees of one committee")
        if self.vote_fee > self.stake:
            raise ValueError("stake: smaller than the fee of one vote, which an absent member loses")
        return self

    @property
    def deposit(self) -> int:
        """The fees of the first committee, which the challenger pays in advance because it asks for the judgement."""
        return self.vote_fee * self.committee

    @property
    def holding(self) -> int:
        """How long after its count a vote can cost a member its stake: all later rounds, and one withdrawal delay."""
        committee = 2 * self.vote_window + self.reveal_window + self.appeal_window
        return self.appeals * committee + self.appeal_window + self.withdrawal_delay

    @property
    def identity(self) -> Digest:
        """The digest by which signed moves name this coordinator's rules."""
        return self.digest_as("rules")


# How a contested range is cut: into `ways` children as equal as integers allow, in the order of the leaves.


def bounds(low: int, high: int, ways: int) -> tuple[int, ...]:
    """The places where the children of [low, high) begin, then `high`; there are min(ways, high − low), none empty."""
    parts = min(ways, high - low)
    return tuple(low + k * (high - low) // parts for k in range(parts + 1))


def cut_places(low: int, high: int, ways: int) -> tuple[int, ...]:
    """The leaves that a partition opens: the last of each child but the last child."""
    return tuple(end - 1 for end in bounds(low, high, ways)[1:-1])


def child(low: int, high: int, ways: int, number: int) -> tuple[int, int]:
    """The range of one child."""
    ends = bounds(low, high, ways)
    return ends[number], ends[number + 1]


def rounds(size: int, ways: int) -> int:
    """The largest number of partitions needed from `size` leaves to one."""
    count = 0
    while size > 1:
        size, count = -(-size // min(ways, size)), count + 1
    return count


# The state of a coordinator, as frozen data: claims, disputes, members, and whose money it holds.

Tree: TypeAlias = tuple[str, int, int]
"""Root, size and levels of a claimed tree."""


class Status(StrEnum):
    """The status of a claim."""

    OPEN = "open"
    FINAL = "final"
    SLASHED = "slashed"


class Phase(StrEnum):
    """The phase of a dispute: whose move, or which decision, comes next."""

    PARTITION = "partition"
    CHOOSE = "choose"
    LEAF = "leaf"
    RULING = "ruling"
    DRAWING = "drawing"
    COMMITTING = "committing"
    REVEALING = "revealing"
    APPEALABLE = "appealable"
    SETTLED = "settled"


@dataclass(frozen=True)
class PostedClaim:
    """A tree of records that a prover backs with `bond`; `disputes` is the number of open disputes over it."""

    prover: str
    root: str
    size: int
    levels: int
    statement: Digest
    seal: str
    deadline: int
    bond: int
    status: Status = Status.OPEN
    disputes: int = 0

    @property
    def tree(self) -> Tree:
        """Root, size and levels of the claimed tree."""
        return self.root, self.size, self.levels


@dataclass(frozen=True)
class Clocks:
    """The seconds that each party had left at the time `since`, when the turn began."""

    prover: int
    challenger: int
    since: int


@dataclass(frozen=True)
class Round:
    """One committee: its members, and the commitment and vote of each ("" and `None` for nothing yet)."""

    drawn: tuple[str, ...]
    commitments: tuple[str, ...]
    votes: tuple[Fault | None, ...]


@dataclass(frozen=True)
class Appealed:
    """An appeal: by which party, against which finding, and its bond."""

    party: str
    against: Fault
    bond: int


@dataclass(frozen=True)
class Dispute:
    """A dispute over leaves [low, high) of the tree `root` of `size` leaves.

    `level` counts down to 1, where leaves are operators. `cuts` are the leaves of the last partition, `leaf` is the
    opened leaf, and `data` names the files at the board of the prover's last move. `deadline` is the end of a phase
    without a party to move, and `seats` the size of the committee to draw. `deposit` pays committees. `element` is the
    one that the challenger named, by its result and its flat place.
    """

    claim: int
    challenger: str
    level: int
    root: str
    size: int
    low: int
    high: int
    phase: Phase
    clocks: Clocks
    bond: int
    deposit: int
    turn: int = 0
    cuts: tuple[str, ...] = ()
    leaf: str = ""
    data: Digest | None = None
    ground: str = ""
    element: tuple[int, int] | None = None
    deadline: int = 0
    seats: int = 0
    rounds: tuple[Round, ...] = ()
    appeals: tuple[Appealed, ...] = ()
    fault: Fault | None = None
    is_unsealed: bool = False

    @property
    def held(self) -> int:
        """The money that this dispute holds."""
        return self.bond + self.deposit + sum(each.bond for each in self.appeals)


@dataclass(frozen=True)
class MemberStake:
    """A member's stake. The member serves in `serving` committees now, and cannot retire before `bound_until`."""

    stake: int
    is_active: bool = True
    serving: int = 0
    bound_until: int = 0


@dataclass(frozen=True)
class Credit:
    """Money that a party is owed, and may withdraw from the real time `ripe` on."""

    amount: int
    ripe: int


@dataclass(frozen=True)
class Pausing:
    """When game time stopped (`None` while it runs), the seconds of all past pauses, and when the next is allowed."""

    since: int | None = None
    total: int = 0
    allowed_from: int = 0


Owed: TypeAlias = Mapping[str, tuple[Credit, ...]]


@dataclass(frozen=True)
class State:
    """The whole state. `balance` is the money that came in and has not gone out."""

    rules: Rules
    claims: tuple[PostedClaim, ...] = ()
    disputes: tuple[Dispute, ...] = ()
    members: Mapping[str, MemberStake] = field(default_factory=lambda: MappingProxyType({}))
    owed: Owed = field(default_factory=lambda: MappingProxyType({}))
    pausing: Pausing = Pausing()
    balance: int = 0
    paid_out: int = 0


# The invariants after every move: no money appears or disappears, and every bond has exactly one owner.


def broken(state: State) -> Iterator[str]:
    """One line for each invariant that does not hold."""
    if held(state) != state.balance:
        yield f"bonds, stakes and credits are {held(state)}, and the balance is {state.balance}"
    open_disputes = Counter(each.claim for each in state.disputes if each.phase is not Phase.SETTLED)
    for number, claim in enumerate(state.claims):
        expected = state.rules.prover_bond if claim.status is Status.OPEN else 0
        if claim.bond != expected:
            yield f"claim {number} is {claim.status} and holds {claim.bond}"
        if claim.disputes != open_disputes[number]:
            yield f"claim {number} counts {claim.disputes} disputes, and {open_disputes[number]} are open"
        if claim.status is Status.FINAL and claim.disputes:
            yield f"claim {number} is final with open disputes"
    for number, dispute in enumerate(state.disputes):
        if dispute.phase is Phase.SETTLED and (dispute.held or dispute.fault is None):
            yield f"dispute {number} is settled and holds {dispute.held}"
        if dispute.deposit < 0 or not 0 <= dispute.low < dispute.high <= dispute.size:
            yield f"dispute {number} stands at leaves {dispute.low} to {dispute.high} with {dispute.deposit}"
    for name, member in state.members.items():
        if member.stake < 0 or member.serving != _sittings(state, name):
            yield f"member {name[:10]} has {member.stake} and serves in {member.serving}"


def held(state: State) -> int:
    """The sum of all bonds, deposits, stakes and credits."""
    claims = sum(claim.bond for claim in state.claims)
    disputes = sum(dispute.held for dispute in state.disputes)
    stakes = sum(member.stake for member in state.members.values())
    return claims + disputes + stakes + sum(each.amount for credits in state.owed.values() for each in credits)


def _sittings(state: State, name: str) -> int:
    voting = (each for each in state.disputes if each.phase in (Phase.COMMITTING, Phase.REVEALING))
    return sum(name in each.rounds[-1].drawn for each in voting)

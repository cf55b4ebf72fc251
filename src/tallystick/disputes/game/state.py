"""The state of a coordinator, as frozen data: claims, disputes, members, and whose money it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

from tallystick.commitments.digests import Digest
from tallystick.disputes.game.rules import Rules
from tallystick.judging.fault import Fault

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

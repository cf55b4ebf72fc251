"""Everything a coordinator knows, as frozen data: claims, disputes, members, and whose money it holds."""

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
"""Root, size and levels of what is claimed."""


class Status(StrEnum):
    """Where a claim stands."""

    OPEN = "open"
    FINAL = "final"
    SLASHED = "slashed"


class Phase(StrEnum):
    """Where a dispute stands."""

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
    """A tree of records that somebody answers for with `bond`; `disputes` are open on it."""

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
        """What it claims: root, size, and levels."""
        return self.root, self.size, self.levels


@dataclass(frozen=True)
class Clocks:
    """The seconds that each party has left, as of `since`, when the turn began."""

    prover: int
    challenger: int
    since: int


@dataclass(frozen=True)
class Round:
    """One committee: who was drawn, and what each committed to and disclosed ("" and `None` for nothing yet)."""

    drawn: tuple[str, ...]
    commitments: tuple[str, ...]
    votes: tuple[Fault | None, ...]


@dataclass(frozen=True)
class Appealed:
    """An appeal: by whom, against which finding, and the bond that rides on it."""

    party: str
    against: Fault
    bond: int


@dataclass(frozen=True)
class Dispute:
    """Leaves [low, high) of a tree, contested.

    `level` counts down to 1, where leaves are operators. `cuts` are the leaves of the last partition, `leaf` the one
    that was opened, `data` what lies at the board for the last of the prover's moves. `deadline` belongs to phases
    without a party to move, `size` of the next committee to `DRAWING`. `deposit` pays committees. `element` is the one
    that the challenger named, by its result and its flat place.
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
    """A member's stake, and how it stands: drawn in `serving` committees now, and bound until `bound_until`."""

    stake: int
    is_active: bool = True
    serving: int = 0
    bound_until: int = 0


@dataclass(frozen=True)
class Credit:
    """Money that somebody is owed and may take out from `ripe` on, in real time."""

    amount: int
    ripe: int


@dataclass(frozen=True)
class Pausing:
    """When game time was stopped (`None` while it runs), how long it stood still in all, and when it may be again."""

    since: int | None = None
    total: int = 0
    allowed_from: int = 0


Owed: TypeAlias = Mapping[str, tuple[Credit, ...]]


@dataclass(frozen=True)
class State:
    """All of it. `balance` is the money that came in and has not gone out."""

    rules: Rules
    claims: tuple[PostedClaim, ...] = ()
    disputes: tuple[Dispute, ...] = ()
    members: Mapping[str, MemberStake] = field(default_factory=lambda: MappingProxyType({}))
    owed: Owed = field(default_factory=lambda: MappingProxyType({}))
    pausing: Pausing = Pausing()
    balance: int = 0
    paid_out: int = 0

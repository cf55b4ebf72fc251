"""The interfaces between a party's program and its computation: the prover's trace, the challenger's doubter, a judge.

Files have the names of the directory that they come from (`opening.json`, `operators.jsonl`, `values.safetensors`).
At the board a `Manifest` lists them; its blob digest is the `data` of a move or the `statement` of a claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from tallystick.disputes.game.moves import Cut
from tallystick.disputes.game.state import Dispute, PostedClaim
from tallystick.verdicts.verdict import Fault

Files = Mapping[str, bytes | Path]


@dataclass(frozen=True)
class OpenedLeaves:
    """The prover's answer to a partition or to the last leaf: leaves with proofs, and the files behind them."""

    cuts: tuple[Cut, ...]
    files: Files = field(default_factory=dict)


@dataclass(frozen=True)
class Descent:
    """The prover's answer at a record: the record with its proof, the tree of its operators, and their files."""

    record: Cut
    root: str
    size: int
    files: Files = field(default_factory=dict)


@dataclass(frozen=True)
class Descended:
    """The move by which the operators of a record were opened: its place among the turns, and the record's leaf."""

    turn: int
    leaf: str


@dataclass(frozen=True)
class DisputeView:
    """A dispute as a party sees it: the claim's files in `statement`, those of the prover's moves in `turns`.

    Each is a folder; `turns` are in the order of the moves. `descended` is the move that opened the operators. It is
    taken from the moves and not from the files, because the prover chooses the files of a folder.
    """

    claim: PostedClaim
    number: int
    dispute: Dispute
    statement: Path
    turns: tuple[Path, ...] = ()
    descended: Descended | None = None


class Trace(Protocol):
    """What a prover can open of one claim, from its run directory, replaying no more than necessary."""

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """The leaves at `places`, and what crosses the cuts after them."""
        ...

    def descend(self, dispute: Dispute) -> Descent | None:
        """The operators below the last record; `None` if it has none and has to be revealed."""
        ...

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The last leaf, with the values that it read and gave."""
        ...


@dataclass(frozen=True)
class Doubt:
    """The leaves of a claim that a challenger contests, and why."""

    low: int
    high: int
    reason: str


Ground = Literal["structure", "budget"]


class Doubter(Protocol):
    """How a challenger finds where a claim goes wrong."""

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        """The leaves of a claim to contest, found by recomputing it; `None` if there are none."""
        ...

    def unseen(self, claim: PostedClaim, statement: Path) -> tuple[str, ...]:
        """What could be wrong with a claim although `doubt` found nothing, in words."""
        ...

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """The first child whose inputs agree and whose outputs leave the tolerance, or the ground of a protest."""
        ...


class Judge(Protocol):
    """How a referee or a member of a committee finds who is at fault."""

    def rule(self, answered: DisputeView, nonce: str | None = None) -> tuple[Fault | None, str]:
        """Who is at fault and why; `None` if a committee has to decide, or a member cannot decide."""
        ...

"""What a party's program asks of what it holds: the prover's trace, the challenger's doubts, a judge's ruling.

Files are named as in the directory that they come from (`opening.json`, `operators.jsonl`, `tensors/….safetensors`);
at the board a `Manifest` lists them, and its blob digest is the `data` of a move, or the `statement` of a claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from tallystick.disputes.game.moves import Cut
from tallystick.disputes.game.state import Dispute, PostedClaim
from tallystick.judging.fault import Fault

Files = Mapping[str, bytes | Path]


@dataclass(frozen=True)
class OpenedLeaves:
    """The prover's answer to a partition or to the last leaf: leaves with proofs, and the files behind them."""

    cuts: tuple[Cut, ...]
    files: Files = field(default_factory=dict)


@dataclass(frozen=True)
class Descent:
    """The prover's answer at a record: the record with its proof, the tree of its operators, and the files behind."""

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

    Each is a folder; `turns` stand in the order of the moves. Which of them opened the operators says the move that
    did, `descended`: what files are in a folder is the prover's choice.
    """

    claim: PostedClaim
    number: int
    dispute: Dispute
    statement: Path
    turns: tuple[Path, ...] = ()
    descended: Descended | None = None


class Trace(Protocol):
    """What a prover can open of one claim, from its run directory, by replaying no more than is asked."""

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """The leaves at `places`, and what crosses the cuts after them."""
        ...

    def descend(self, dispute: Dispute) -> Descent | None:
        """The operators below the record that is left; `None` if this record has none and is to be revealed."""
        ...

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The leaf that is left, with the values that it read and gave."""
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
        """What to contest of a claim, by recomputing it; `None` for nothing."""
        ...

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """The first child whose inputs agree and whose outputs leave the tolerance, or the ground of a protest."""
        ...


class Judge(Protocol):
    """What a referee or a member of a committee finds."""

    def rule(self, answered: DisputeView, nonce: str | None = None) -> tuple[Fault | None, str]:
        """Who is at fault and why; `None` where a committee has to decide, or a member cannot tell."""
        ...

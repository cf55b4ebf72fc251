"""What a claim is about, as its parties and judges handle it: a training run, recorded calls, or opened operators.

Whoever asks something of a statement need not know which of the three it is. Each reads its files when they are first
needed, once, and rechecks every digest in them then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from tallystick.disputes.evidence.locate import ChallengerWork
from tallystick.disputes.evidence.rulings import Ruled
from tallystick.disputes.evidence.view import OpeningView
from tallystick.disputes.game.protocols import Doubt, Trace
from tallystick.graphs.engine import Engine
from tallystick.transcripts.budget import Budget
from tallystick.transcripts.claim import Log

Levels: TypeAlias = Literal[1, 2]
"""2 where the leaves of a claim are records, 1 where they are operators."""


@dataclass
class Recomputation:
    """What a challenger computes with, and how much it has computed; `budgets` say what errors may add up to."""

    engine: Engine
    device: str = "cpu"
    budgets: tuple[Budget, ...] = ()
    work: ChallengerWork = field(default_factory=ChallengerWork)


@dataclass(frozen=True)
class OpenQuestion:
    """What only a replay can tell about a prover's answer, and the replay that does.

    `settle` takes a device and how many times the limits something may be off, and counts the steps that it replays.
    """

    text: str
    settle: Callable[[str, float, ChallengerWork], Ruled]


class ClaimStatement(Protocol):
    """What a claim is about."""

    @property
    def levels(self) -> Levels:
        """2 where the leaves of the claim are records, 1 where they are operators."""
        ...

    @property
    def tree(self) -> Log:
        """The tree that a claim is about; raises `UnavailableError` where the folder holds none yet."""
        ...

    def require_whole(self) -> None:
        """Recheck all of it, once; raises `ProofError` with the first check that fails."""
        ...

    def require_disputable(self) -> None:
        """Raise `UsageError` where its prover could not answer for it in a dispute."""
        ...

    def trace(self, work: Path, engine: Engine | None = None, device: str = "cpu") -> Trace:
        """What the prover opens of it; `work` is a folder that is kept between calls.

        `engine` computes the operators that are opened, PyTorch on `device` by default. Raises `UsageError` for an
        engine that is known to lie outside the bounds, to which a referee holds everybody.
        """
        ...

    def check(self, view: OpeningView) -> tuple[OpenQuestion, ...]:
        """Raise `ProofError` unless the opened operators belong to it; returns what only a replay can tell."""
        ...

    @property
    def questions_of_records(self) -> tuple[OpenQuestion, ...]:
        """What only a replay can tell of its records, though each is the claimed one."""
        ...

    def doubt(self, own: Recomputation) -> Doubt | None:
        """The first of its leaves that one's own computation does not confirm; `None` where all are confirmed.

        Raises `ProofError` where it is not whole.
        """
        ...

    def rule_record(self, line: bytes, device: str | None) -> Ruled:
        """Who is at fault over a record whose operators the prover did not open; a `device` permits to replay."""
        ...

"""The statement of a claim, which its parties and judges work on: a training run, recorded calls, or opened operators.

The protocol `ClaimStatement` is the same for all three. A statement reads its files once, on first use, and rechecks
every digest in them at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from tallystick.commitments.digests import Digest
from tallystick.disputes.evidence.locate import ChallengerWork
from tallystick.disputes.evidence.rulings import Ruled
from tallystick.disputes.evidence.view import OpeningView
from tallystick.disputes.game.protocols import Doubt, Trace
from tallystick.graphs.engine import Engine
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.budget import Budget
from tallystick.transcripts.claim import Log

Levels: TypeAlias = Literal[1, 2]
"""2 if the leaves of a claim are records, 1 if they are operators."""


@dataclass
class Recomputation:
    """What a challenger computes with; `work` counts what it computed, `budgets` limit the sum of errors of a step."""

    engine: Engine
    device: str = "cpu"
    budgets: tuple[Budget, ...] = ()
    work: ChallengerWork = field(default_factory=ChallengerWork)


@dataclass(frozen=True)
class OpenQuestion:
    """A question about a prover's answer that only a replay can decide.

    `settle` runs the replay. Its arguments are a device, the factor by which the limits are multiplied, and the counter
    of replayed steps.
    """

    text: str
    settle: Callable[[str, float, ChallengerWork], Ruled]


class ClaimStatement(Protocol):
    """What a claim is about."""

    @property
    def levels(self) -> Levels:
        """2 if the leaves of the claim are records, 1 if they are operators."""
        ...

    @property
    def known(self) -> Mapping[Digest, Tensor]:
        """Values that its reader has of its own, by the digests they were compared with: the weights of a model."""
        ...

    @property
    def tree(self) -> Log:
        """The tree that the claim is about; raises `UnavailableError` if the folder has none yet."""
        ...

    def require_whole(self) -> None:
        """Recheck every file, once; raises `ProofError` with the first check that fails."""
        ...

    def require_disputable(self) -> None:
        """Raise `UsageError` if its prover could not answer for it in a dispute."""
        ...

    def trace(self, work: Path, engine: Engine | None = None, device: str = "cpu") -> Trace:
        """The prover's side: what it opens of the statement. `work` is a folder that is kept between calls.

        `engine` computes the operators that are opened, PyTorch on `device` by default. Raises `UsageError` for an
        engine that is known to exceed the bounds, because a referee would convict its user.
        """
        ...

    def check(self, view: OpeningView) -> tuple[OpenQuestion, ...]:
        """Raise `ProofError` unless the opened operators belong to it; returns what only a replay can decide."""
        ...

    @property
    def questions_of_records(self) -> tuple[OpenQuestion, ...]:
        """What only a replay can decide about its records, although each record is the claimed one."""
        ...

    def doubt(self, own: Recomputation) -> Doubt | None:
        """The first leaf that the challenger's own computation does not confirm; `None` if it confirms all.

        Raises `ProofError` if a file is missing or not the stated one.
        """
        ...

    def unseen(self, own: Recomputation) -> tuple[str, ...]:
        """What could be wrong although `doubt` found nothing: departures that stay within its limits, in words."""
        ...

    def rule_record(self, line: bytes, device: str | None) -> Ruled:
        """Who is at fault over a record whose operators the prover did not open; replays only with a `device`."""
        ...

"""The statement of a claim, for operators opened beforehand too, and whether an answer is consistent with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Protocol, TypeAlias

from tallystick.core.digests import Digest, leaf_hash
from tallystick.core.errors import ProofError
from tallystick.core.files import read_document
from tallystick.core.tensors import Tensor
from tallystick.disputes.evidence.locate import ChallengerWork
from tallystick.disputes.evidence.replays import Ruled, doubt_operators
from tallystick.disputes.evidence.traces import OperatorTrace, record_file, require_within_bounds
from tallystick.disputes.evidence.view import OpeningView, places_of, read_operators, supplied
from tallystick.disputes.game.protocols import DisputeView, Doubt, Trace
from tallystick.formats.claims import Log
from tallystick.formats.openings import Opening
from tallystick.formats.store.directories import OpeningDirectory
from tallystick.programs.encoding import graph_root
from tallystick.programs.execution import Engine
from tallystick.verdicts.leaf.request import LeafRequest
from tallystick.verdicts.opening.binding import check_binding
from tallystick.verdicts.opening.budget import judge_budget
from tallystick.verdicts.profiles import Budget, budget_for
from tallystick.verdicts.verdict import require

# The statement of a claim, which its parties and judges work on: a training run, recorded calls, or opened operators.
#
# The protocol `ClaimStatement` is the same for all three. A statement reads its files once, on first use, and rechecks
# every digest in them at that time.

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


# A claim about all operators of one record, opened beforehand: the one-round mode.


@dataclass(frozen=True)
class OperatorsStatement:
    """Operators that were all committed to beforehand; implements `ClaimStatement`."""

    folder: OpeningDirectory
    levels: ClassVar[Levels] = 1
    known: ClassVar[Mapping[Digest, Tensor]] = {}
    questions_of_records: ClassVar[tuple[OpenQuestion, ...]] = ()

    @property
    def tree(self) -> Log:
        """See `ClaimStatement`."""
        return self.opening.operators

    @cached_property
    def opening(self) -> Opening:
        """The opening."""
        return self.folder.opening()

    def require_whole(self) -> None:
        """See `ClaimStatement`; reads the opening alone, `doubt` rechecks the operators."""
        assert self.opening is not None  # reading raises

    def require_disputable(self) -> None:
        """See `ClaimStatement`; every opening can be disputed."""

    def trace(self, work: Path, engine: Engine | None = None, device: str = "cpu") -> OperatorTrace:
        """See `ClaimStatement`; nothing is computed, because all values are in the folder."""
        require_within_bounds(self.opening.engine)
        return OperatorTrace(self.folder.path)

    def check(self, view: OpeningView) -> tuple[OpenQuestion, ...]:
        """See `ClaimStatement`; no question stays open."""
        require(view.opening == self.opening, "another opening than the claimed one")
        check_binding(view.opening)
        return ()

    def doubt(self, own: Recomputation) -> Doubt | None:
        """See `ClaimStatement`; errors that are within the limits of each operator may still add up."""
        with supplied():
            view = OpeningView(read_operators(self.folder.path), (self.folder.path,))
        assert view.digests is not None  # reading raises if operators do not follow from one another
        found = doubt_operators(view, own.engine, own.work, LeafRequest())
        if found is None and errors_add_up(view, own.budgets):
            return Doubt(0, self.tree.size, "the errors of all operators add up")
        return found

    def unseen(self, own: Recomputation) -> tuple[str, ...]:
        """See `ClaimStatement`."""
        return ("results of an operator within its proven bound, or values that are opened and were not computed",)

    def rule_record(self, line: bytes, device: str | None) -> Ruled:
        """Raise `ProofError`: the leaves of this claim are operators, not records."""
        raise ProofError("the claim is about operators, and a record was revealed")


def errors_add_up(view: OpeningView, budgets: tuple[Budget, ...]) -> bool:
    """Whether errors that are within the limits of each operator add up over a step; runs the reference once."""
    budget = budget_for(budgets, graph_root(view.graph)) if budgets else None
    return budget is not None and judge_budget(view.graph, view.opened, budget).outcome == "rejected"


# Whether the prover's last answer is consistent and belongs to its claim: the ground of a protest.
#
# The records of a partition have to be those under its leaves. The operators have to follow from one another under the
# posted root, and to belong to the opened record and to the statement of the claim. Everything that had to be opened
# has to be there.


def check_descent(answered: DisputeView, statement: ClaimStatement, view: OpeningView) -> tuple[OpenQuestion, ...]:
    """Raise `ProofError` unless the operators are those of the claim; returns what only a replay can decide.

    That values are opened is seen, and their bytes are not read: who runs children reads each value before using it,
    and a judge reads all. Raises `UnavailableError` if no limits are known for the comparison of states.
    """
    view.check(answered.dispute)
    if answered.descended is not None:
        leaf = leaf_hash(view.opening.record.encode()).hex()
        require(leaf == answered.descended.leaf, "the opening is about another record than was opened")
    view.require_ends()
    return statement.check(view)


def check_records(answered: DisputeView) -> None:
    """Raise `ProofError` unless the records of the last partition are there, under the posted leaves."""
    dispute = answered.dispute
    require(bool(answered.turns), "no records were opened")
    for place, leaf in zip(places_of(dispute), dispute.cuts, strict=True):
        with supplied():
            line = read_document(answered.turns[-1] / record_file(place))
        require(leaf_hash(line).hex() == leaf, f"record {place} is not the one under the posted leaf")

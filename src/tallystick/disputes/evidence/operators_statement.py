"""A claim about all operators of one record, opened beforehand: the one-round mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from tallystick.commitments.digests import Digest
from tallystick.disputes.evidence.claim_statement import Levels, OpenQuestion, Recomputation
from tallystick.disputes.evidence.doubts import doubt_operators
from tallystick.disputes.evidence.rulings import Ruled
from tallystick.disputes.evidence.traces import (
    OperatorTrace,
    require_within_bounds,
)
from tallystick.disputes.evidence.view import OpeningView, supplied
from tallystick.disputes.evidence.whole import read_operators
from tallystick.disputes.game.protocols import Doubt
from tallystick.errors import ProofError
from tallystick.graphs.engine import Engine
from tallystick.graphs.root import graph_root
from tallystick.judging.findings import require
from tallystick.judging.leaf.request import LeafRequest
from tallystick.judging.opening.binding import check_binding
from tallystick.judging.opening.budget import judge_budget
from tallystick.store.statement import OpeningDirectory
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.budget import Budget, budget_for
from tallystick.transcripts.claim import Log
from tallystick.transcripts.opening import Opening


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

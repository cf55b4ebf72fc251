"""The challenger's computation: which leaves of a claim it contests, and which child of each partition is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from tallystick.audits.opening import require_agreement
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.disputes.evidence.calls import doubt_calls, unseen_in_calls
from tallystick.disputes.evidence.locate import ChallengerWork, deviations, locate
from tallystick.disputes.evidence.replays import MARGIN, Replays, audit_whole, doubt_training
from tallystick.disputes.evidence.statement import (
    CallsStatement,
    OperatorsStatement,
    Statement,
    StatementCache,
    check_descent,
    check_records,
)
from tallystick.disputes.evidence.traces import torch_engine
from tallystick.disputes.evidence.training import TrainingStatement
from tallystick.disputes.evidence.view import OpeningView, as_prover_fault, read_operators, view_of
from tallystick.disputes.game.protocols import DisputeView, Doubt, Ground
from tallystick.disputes.game.state import PostedClaim, Tree
from tallystick.formats.spec import Origin
from tallystick.formats.store.directories import open_origin
from tallystick.programs.encoding import graph_root
from tallystick.programs.execution import Engine
from tallystick.verdicts.leaf.judge import rule_leaf
from tallystick.verdicts.leaf.request import LeafRequest
from tallystick.verdicts.opening.budget import judge_budget
from tallystick.verdicts.profiles import Budget, budget_for
from tallystick.verdicts.verdict import Fault, Findings

CONFIRMED_MAX: Final = 16
"""The largest number of operators within the tolerance about which the referee's rules are asked."""
ANCHORS: Final = frozenset({"anchor", "final state"})
"""The findings of an audit about the files of anchors."""


def doubter_for(
    engine: Engine | None = None,
    device: str = "cpu",
    contests_all: bool = False,
    budgets: tuple[Budget, ...] = (),
    initial: Iterable[Path] = (),
) -> OpenedDoubter:
    """A challenger that computes with `engine`, PyTorch on `device` by default.

    With `contests_all` it contests all leaves of a wrong claim, not only the first wrong leaf, so that the records are
    bisected too. `budgets` limit the sum of errors of a whole step, one for each graph. `initial` are directories of
    weights that runs may begin with. Raises `UnavailableError` if the device is not there, or a directory holds none.
    """
    origins = tuple(open_origin(each) for each in initial)
    return OpenedDoubter(engine or torch_engine(device), device, contests_all, budgets, origins)


@dataclass
class OpenedDoubter:
    """A challenger that has the whole statement of a claim; implements `game.protocols.Doubter`.

    `work` counts what it computed. It keeps what it found about a claim in memory, and computes it again after a
    restart.
    """

    engine: Engine
    device: str = "cpu"
    contests_all: bool = False
    budgets: tuple[Budget, ...] = ()
    origins: tuple[Origin, ...] = ()
    work: ChallengerWork = field(default_factory=ChallengerWork)
    _found: dict[tuple[Path, Tree], Doubt | None] = field(default_factory=dict)
    _statements: StatementCache = field(init=False)

    def __post_init__(self) -> None:
        self._statements = StatementCache(self.origins)

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        """The first wrong leaf of a claim; `None` if no leaf is known to be wrong."""
        doubt = self._doubt(claim, statement)
        return Doubt(0, claim.size, doubt.reason) if doubt is not None and self.contests_all else doubt

    def unseen(self, claim: PostedClaim, statement: Path) -> tuple[str, ...]:
        """See `Doubter`."""
        return self.unseen_in(self._statements.claimed(statement, claim))

    def recall(self, claim: PostedClaim, statement: Path, doubt: Doubt | None) -> None:
        """Store what another doubter found about a claim, so that it is not computed again."""
        self._found[(statement, claim.tree)] = doubt

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """The child with the first wrong record, or the first child whose outputs leave the tolerance."""
        try:
            statement = self._statements.whole(answered.statement, answered.claim)
            if answered.dispute.level > 1:
                check_records(answered)
                return self._child_of_records(answered, children)
            return self._child_of_operators(answered, statement, children)
        except (ProofError, MalformedError):  # all that is read here was supplied by the prover
            return "structure"

    def _child_of_records(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        doubt = self._doubt(answered.claim, answered.statement)
        if doubt is None or doubt.high - doubt.low > 1:
            return "structure"
        return next(number for number, (low, high) in enumerate(children) if low <= doubt.low < high)

    def _child_of_operators(
        self, answered: DisputeView, statement: Statement, children: Sequence[tuple[int, int]]
    ) -> int | Ground:
        view, dispute = view_of(answered, statement.known), answered.dispute
        is_whole = (dispute.low, dispute.high) == (0, dispute.size)
        if is_whole:
            question = check_descent(answered, statement, view)
            if question and isinstance(statement, TrainingStatement):
                replays = Replays(statement, self.device)
                fault, reason = replays.rule_start(view, MARGIN)
                self.work.replayed += replays.steps
                if fault is Fault.PROVER:
                    raise ProofError(f"{question}: {reason}")
        child, is_within = locate(view, children, self.engine, self.work)
        if is_whole and is_within:
            view.check_ends()  # where no child is wrong, bytes that no child read may be
            if errors_add_up(view, self.budgets):
                return "budget"
        return child

    def _doubt(self, claim: PostedClaim, path: Path) -> Doubt | None:
        """The doubt about a claim, computed once; about all leaves if its statement is inconsistent."""
        key = (path, claim.tree)
        if key not in self._found:
            try:
                self._found[key] = self.doubt_of(self._statements.claimed(path, claim))
            except (ProofError, MalformedError) as error:
                self._found[key] = Doubt(0, claim.size, str(error))
        return self._found[key]

    def doubt_of(self, statement: Statement) -> Doubt | None:
        """The first leaf of a statement that the own computation does not confirm; `None` if it confirms all.

        Raises `ProofError` if a file is missing or not the stated one.
        """
        match statement:
            case TrainingStatement():
                return self._doubt_training(statement)
            case CallsStatement():
                statement.require_whole()
                return doubt_calls(statement.calls, self.engine, self.work, statement.digested[0])
            case OperatorsStatement():
                return self._doubt_operators(statement)

    def unseen_in(self, statement: Statement) -> tuple[str, ...]:
        """What could be wrong although `doubt_of` gave nothing: departures that stay within its limits, in words."""
        match statement:
            case TrainingStatement():
                return unseen_in_training(statement)
            case CallsStatement():
                return (
                    *self.work.remarks,
                    *unseen_in_calls(statement.calls, self.engine, statement.digested[0]),
                )
            case OperatorsStatement():
                return (
                    "results of an operator within its proven bound, or values that are opened and were not computed",
                )

    def _doubt_training(self, statement: TrainingStatement) -> Doubt | None:
        """By the report of a full audit, which rechecks every anchor when it reads it."""
        with as_prover_fault():
            replays = Replays(statement, self.device)
        report = audit_whole(statement, self.device)
        if report.verdict.unavailable:
            statement.require_whole()  # a missing anchor was withheld, which is the prover's fault
        anchors = [finding for finding in report.verdict.findings if finding.name in ANCHORS]
        require_agreement(str(statement.run.path), Findings(anchors))
        statement.is_whole = True
        doubt = doubt_training(statement, replays, report)
        self.work.replayed += statement.evidence.steps + replays.steps
        return doubt

    def _doubt_operators(self, statement: OperatorsStatement) -> Doubt | None:
        """The first operator that a referee would convict; errors within the limits of each may still add up."""
        folder = statement.folder.path
        with as_prover_fault():
            view = OpeningView(read_operators(folder), (folder,))
        assert view.digests is not None  # reading raises if operators do not follow from one another
        doubt = doubt_operators(view, self.engine, self.work, LeafRequest())
        if doubt is None and errors_add_up(view, self.budgets):
            return Doubt(0, statement.tree.size, "the errors of all operators add up")
        return doubt


def doubt_operators(view: OpeningView, engine: Engine, work: ChallengerWork, question: LeafRequest) -> Doubt | None:
    """The first operator that a referee would convict; the operators with the largest deviations are tried first.

    The deviation of an operator is taken from what its own claimed operands give. Every operator outside the tolerance
    is tried, and `CONFIRMED_MAX` of those within it.
    """
    far = list(deviations(view, engine, work))
    suspects = sorted((place for place in range(len(far)) if far[place] > 0), key=lambda place: (-far[place], place))
    outside = sum(each > 1.0 for each in far)
    for place in suspects[: outside + CONFIRMED_MAX]:
        ruling = rule_leaf(view.bundle(place), question)
        if ruling.fault is Fault.PROVER or (ruling.fault is None and far[place] > MARGIN):
            return Doubt(place, place + 1, ruling.reason)
    return None


def unseen_in_training(statement: TrainingStatement) -> tuple[str, ...]:
    """What could be wrong with a training within the limits of the windows between its anchors."""
    marks = sorted(statement.evidence.anchors)
    try:
        windows = [statement.limits(start, end - start) for start, end in pairwise(marks)]
    except UnavailableError:
        return ()  # bits were compared
    share = max((MARGIN * each.weights.overall for each in windows), default=0.0)
    withdrawn = sorted({name for each in windows for name in each.withdrawn})
    weights = f"weights off by less than {share:.2g} of their update between two anchors, as by a layer in fewer bits"
    return (weights, *(f"{name}, which the calibrated limits do not tell from rounding" for name in withdrawn))


def errors_add_up(view: OpeningView, budgets: tuple[Budget, ...]) -> bool:
    """Whether errors that are within the limits of each operator add up over a step; runs the reference once."""
    budget = budget_for(budgets, graph_root(view.graph)) if budgets else None
    return budget is not None and judge_budget(view.graph, view.opened, budget).outcome == "rejected"

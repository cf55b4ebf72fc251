"""The challenger: what it contests of a claim, and which child of each partition holds the fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.disputes.evidence.calls import doubt_calls
from tallystick.disputes.evidence.claimed_run import ClaimCache, ClaimedCalls, ClaimedRun, ClaimedTraining
from tallystick.disputes.evidence.doubts import MARGIN, audit_whole, doubt_operators, doubt_training
from tallystick.disputes.evidence.locate import ChallengerWork, locate
from tallystick.disputes.evidence.replays import Replays, objection
from tallystick.disputes.evidence.structure import check_descent, check_turn
from tallystick.disputes.evidence.subjects import THREADS_MAX
from tallystick.disputes.evidence.traces import torch_engine
from tallystick.disputes.evidence.view import OpeningView, supplied, view_of
from tallystick.disputes.evidence.whole import read_operators
from tallystick.disputes.game.protocols import DisputeView, Doubt, Ground
from tallystick.disputes.game.state import PostedClaim, Tree
from tallystick.errors import MalformedError, ProofError
from tallystick.graphs.engine import Engine
from tallystick.graphs.root import graph_root
from tallystick.judging.leaf.request import LeafRequest
from tallystick.judging.opening.budget import judge_budget
from tallystick.transcripts.budget import Budget, budget_for
from tallystick.workloads.names import STATE_PREFIXES
from tallystick.workloads.verifier_stack import VerifierStack


def doubter_for(
    engine: Engine | None = None, device: str = "cpu", contests_all: bool = False, budgets: tuple[Budget, ...] = ()
) -> OpenedDoubter:
    """A challenger that computes with `engine`, PyTorch on `device` by default.

    With `contests_all` it contests all leaves of a claim and not only the first wrong one, so that the records are
    bisected too. `budgets` say what the errors of a whole step may add up to, for each graph. Raises
    `UnavailableError` where the device is not there.
    """
    return OpenedDoubter(engine or torch_engine(device), device, contests_all, budgets)


@dataclass
class OpenedDoubter:
    """A challenger that holds the whole statement of a claim; implements `parties.Doubter`.

    `work` says what it computed. What it found about a claim is remembered, and found anew after a restart.
    """

    engine: Engine
    device: str = "cpu"
    contests_all: bool = False
    budgets: tuple[Budget, ...] = ()
    work: ChallengerWork = field(default_factory=ChallengerWork)
    _found: dict[tuple[Path, Tree], Doubt | None] = field(default_factory=dict)
    _held: ClaimCache = field(default_factory=ClaimCache)

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        """The first leaf of a claim that is wrong; `None` where nothing is, or nothing can be said."""
        found = self._suspicion(claim, statement)
        return Doubt(0, claim.size, found.reason) if found is not None and self.contests_all else found

    def recall(self, claim: PostedClaim, statement: Path, found: Doubt | None) -> None:
        """Take over what another doubter found of a claim, so that it is not computed again."""
        self._found[(statement, claim.tree)] = found

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        """The child with the first wrong record, or the first whose outputs leave the tolerance."""
        try:
            held = self._held.of(answered.statement, answered.claim)
            if answered.dispute.level > 1:
                check_turn(answered, held)
                return self._child_of_records(answered, children)
            return self._child_of_operators(answered, held, children)
        except (ProofError, MalformedError):  # all that is read here was supplied by the prover
            return "structure"

    def _child_of_records(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        found = self._suspicion(answered.claim, answered.statement)
        if found is None or found.high - found.low > 1:
            return "structure"
        return next(number for number, (low, high) in enumerate(children) if low <= found.low < high)

    def _child_of_operators(
        self, answered: DisputeView, held: ClaimedRun, children: Sequence[tuple[int, int]]
    ) -> int | Ground:
        view, dispute = view_of(answered), answered.dispute
        is_whole = (dispute.low, dispute.high) == (0, dispute.size)
        if is_whole:
            self._check_descent(answered, held, view)
        found = locate(view, children, self.engine, self.work)
        if is_whole and found.is_within and self._is_aligned(view):
            return "budget"
        return found.child

    def _is_aligned(self, view: OpeningView) -> bool:
        """Whether errors that no operator shows add up; costs a run of the reference, and is asked last."""
        budget = budget_for(self.budgets, graph_root(view.graph)) if self.budgets else None
        return budget is not None and judge_budget(view.graph, view.opened, budget).outcome == "rejected"

    def _check_descent(self, answered: DisputeView, held: ClaimedRun, view: OpeningView) -> None:
        """Raise `ProofError` where the opening is not that of this step, by its looks or by a replay."""
        if check_descent(answered, held, view) and isinstance(held, ClaimedTraining):
            self._check_before(held, view)

    def _check_before(self, held: ClaimedTraining, view: OpeningView) -> None:
        replays = Replays(held, self.device)
        names = [each.name for each in view.graph.inputs if each.name.startswith(STATE_PREFIXES)]
        step = int(view.value("position.step").values()) + 1
        notes = replays.check_before(view.values(names), step)
        self.work.replayed += replays.steps
        if found := objection(notes, MARGIN):
            raise ProofError(f"the operators start from another state: {found}")

    def _suspicion(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        key = (statement, claim.tree)
        if key not in self._found:
            self._found[key] = self._examined(claim, statement)
        return self._found[key]

    def _examined(self, claim: PostedClaim, statement: Path) -> Doubt | None:
        try:
            held = self._held.of(statement, claim)
            if isinstance(held, ClaimedTraining):
                replays = Replays(held, self.device)
                report = audit_whole(held.evidence, stack_for(held, self.device))
                found = doubt_training(held, replays, report)
                self.work.replayed += held.evidence.steps + replays.steps
                return found
            if isinstance(held, ClaimedCalls):
                return doubt_calls(held, self.engine, self.work)
            return self._examined_operators(claim, _whole(statement))
        except (ProofError, MalformedError) as error:
            return Doubt(0, claim.size, str(error))

    def _examined_operators(self, claim: PostedClaim, view: OpeningView) -> Doubt | None:
        found = doubt_operators(view, self.engine, self.work, LeafRequest())
        if found is None and self._is_aligned(view):
            return Doubt(0, claim.size, "the errors of all operators add up")
        return found


def stack_for(held: ClaimedTraining, device: str) -> VerifierStack:
    """PyTorch on `device`, with as many threads as the run states."""
    import torch

    from tallystick.frameworks.torch.training.verifier_stack import torch_verifier_stack

    torch.set_num_threads(min(held.evidence.environment.threads, THREADS_MAX))
    return torch_verifier_stack(device)


def _whole(statement: Path) -> OpeningView:
    with supplied():
        view = OpeningView(read_operators(statement), (statement,))
    assert view.digests is not None  # raises where operators do not follow from one another
    return view

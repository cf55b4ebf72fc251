"""The challenger's computation: which leaves of a claim it contests, and which child of each partition is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.core.errors import MalformedError, ProofError
from tallystick.disputes.evidence.claim_statement import (
    ClaimStatement,
    Recomputation,
    check_descent,
    check_records,
    errors_add_up,
)
from tallystick.disputes.evidence.locate import ChallengerWork, locate
from tallystick.disputes.evidence.replays import MARGIN
from tallystick.disputes.evidence.statement import StatementCache
from tallystick.disputes.evidence.traces import torch_engine
from tallystick.disputes.evidence.view import view_of
from tallystick.disputes.game.protocols import DisputeView, Doubt, Ground
from tallystick.disputes.game.state import PostedClaim, Tree
from tallystick.formats.spec import Origin
from tallystick.formats.store.directories import open_origin
from tallystick.programs.execution import Engine
from tallystick.verdicts.profiles import Budget
from tallystick.verdicts.verdict import Fault


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
        found = self._doubt(claim, statement)
        return Doubt(0, claim.size, found.reason) if found is not None and self.contests_all else found

    def unseen(self, claim: PostedClaim, statement: Path) -> tuple[str, ...]:
        """See `Doubter`."""
        own = Recomputation(self.engine, self.device, self.budgets, self.work)
        return self._statements.claimed(statement, claim).unseen(own)

    def recall(self, claim: PostedClaim, statement: Path, found: Doubt | None) -> None:
        """Store what another doubter found about a claim, so that it is not computed again."""
        self._found[(statement, claim.tree)] = found

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
        found = self._doubt(answered.claim, answered.statement)
        if found is None or found.high - found.low > 1:
            return "structure"
        return next(number for number, (low, high) in enumerate(children) if low <= found.low < high)

    def _child_of_operators(
        self, answered: DisputeView, statement: ClaimStatement, children: Sequence[tuple[int, int]]
    ) -> int | Ground:
        view, dispute = view_of(answered, statement.known), answered.dispute
        is_whole = (dispute.low, dispute.high) == (0, dispute.size)
        if is_whole:
            for question in check_descent(answered, statement, view):
                fault, reason = question.settle(self.device, MARGIN, self.work)
                if fault is Fault.PROVER:
                    raise ProofError(f"{question.text}: {reason}")
        found = locate(view, children, self.engine, self.work)
        if is_whole and found.is_within:
            view.check_ends()  # where no child is wrong, bytes that no child read may be
            if errors_add_up(view, self.budgets):
                return "budget"
        return found.child

    def _doubt(self, claim: PostedClaim, path: Path) -> Doubt | None:
        """The doubt about a claim, computed once; about all leaves if its statement is inconsistent."""
        key = (path, claim.tree)
        if key not in self._found:
            own = Recomputation(self.engine, self.device, self.budgets, self.work)
            try:
                self._found[key] = self._statements.claimed(path, claim).doubt(own)
            except (ProofError, MalformedError) as error:
                self._found[key] = Doubt(0, claim.size, str(error))
        return self._found[key]

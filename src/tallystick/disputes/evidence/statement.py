"""Read the statement in a folder, and keep the statements of posted claims in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tallystick.commitments.digests import digest_bytes
from tallystick.disputes.evidence.calls_statement import CallsStatement
from tallystick.disputes.evidence.claim_statement import ClaimStatement
from tallystick.disputes.evidence.operators_statement import OperatorsStatement
from tallystick.disputes.evidence.training_statement import TrainingStatement
from tallystick.disputes.evidence.view import supplied
from tallystick.disputes.game.state import PostedClaim, Tree
from tallystick.judging.findings import require
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory
from tallystick.store.statement import OpeningDirectory, read_statement
from tallystick.workloads.origin import Origin


def statement_at(path: Path, levels: int | None = None, origins: tuple[Origin, ...] = ()) -> ClaimStatement:
    """The statement in a folder, for a reader who has the weights `origins`; raises what `read_statement` raises."""
    match read_statement(path, levels):
        case RunDirectory() as run:
            return TrainingStatement(run, origins)
        case InferenceDirectory() as run:
            return CallsStatement(run)
        case OpeningDirectory() as opened:
            return OperatorsStatement(opened)


@dataclass(frozen=True)
class StatementCache:
    """The statements of posted claims that were read before, by path and tree: two claims may name the same files.

    `origins` are weights that runs may begin with, as the reader has them.
    """

    origins: tuple[Origin, ...] = ()
    _read: dict[tuple[Path, Tree], ClaimStatement] = field(default_factory=dict)

    def whole(self, path: Path, claim: PostedClaim) -> ClaimStatement:
        """As `claimed`; raises `ProofError` also if a file of the statement is missing or not the stated one."""
        found = self.claimed(path, claim)
        with supplied():
            found.require_whole()
        return found

    def claimed(self, path: Path, claim: PostedClaim) -> ClaimStatement:
        """The statement of a claim; raises `ProofError` if it is about another tree than the claim."""
        key = (path, claim.tree)
        if key not in self._read:
            with supplied():
                found = statement_at(path, claim.levels, self.origins)
                tree = (digest_bytes(found.tree.root).hex(), found.tree.size)
                require(tree == (claim.root, claim.size), "the statement is about another tree than the claim")
            self._read[key] = found
        return self._read[key]

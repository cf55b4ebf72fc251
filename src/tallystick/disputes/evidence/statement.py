"""The statement in a folder: of a training, of calls of a model, or of operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.limits import shipped_calibration
from tallystick.audits.opening import check_anchors, gather_records, graph_replayer, require_agreement
from tallystick.audits.report import TrainingReport
from tallystick.core.digests import Digest, digest_bytes
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.disputes.evidence.calls import CallsStatement
from tallystick.disputes.evidence.claim_statement import (
    ClaimStatement,
    Levels,
    OpenQuestion,
    OperatorsStatement,
    Recomputation,
)
from tallystick.disputes.evidence.locate import ChallengerWork
from tallystick.disputes.evidence.replays import (
    MARGIN,
    Replays,
    Ruled,
    audit_whole,
    doubt_training,
    objection,
    rule_by_audit,
    rule_training_record,
)
from tallystick.disputes.evidence.traces import (
    RecordTrace,
    TrainingSource,
    records_of,
    require_within_bounds,
    torch_engine,
)
from tallystick.disputes.evidence.training import ClaimedTraining, check_step
from tallystick.disputes.evidence.view import OpeningView, supplied
from tallystick.disputes.game.protocols import Doubt
from tallystick.disputes.game.state import PostedClaim, Tree
from tallystick.formats.claims import Log
from tallystick.formats.spec import Origin
from tallystick.formats.store.directories import InferenceDirectory, OpeningDirectory, read_statement
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.execution import Engine
from tallystick.programs.step_names import STATE_PREFIXES
from tallystick.verdicts.verdict import Fault, Findings, require

# A claim about a training run.

ANCHORS: Final = frozenset({"anchor", "final state"})
"""The findings of an audit about the files of anchors."""


@dataclass
class TrainingStatement:
    """A training run; implements `ClaimStatement`. Its anchors are rechecked once, and `is_whole` is set then.

    Of the `origins` that its reader has, the one counts whose digest the spec states as that of the first weights.
    """

    run: RunDirectory
    origins: tuple[Origin, ...] = ()
    is_whole: bool = field(default=False, init=False)
    levels: ClassVar[Levels] = 2
    known: ClassVar[Mapping[Digest, Tensor]] = {}

    @property
    def tree(self) -> Log:
        """See `ClaimStatement`."""
        return self.run.claim().transcript

    @cached_property
    def evidence(self) -> CheckedRun:
        """The run, with every digest rechecked except those of its anchors; raises `ProofError`."""
        return gather_records(self.run)

    @property
    def training(self) -> ClaimedTraining:
        """The run with the limits that come with this software, and its first weights where they are here."""
        stated = self.evidence.spec.first_weights
        origin = next((each for each in self.origins if each.digest == stated), None)
        return ClaimedTraining(self.evidence, shipped_calibration(), origin)

    def require_whole(self) -> None:
        """See `ClaimStatement`."""
        if not self.is_whole:
            with supplied():
                check_anchors(self.evidence)
            self.is_whole = True

    def require_disputable(self) -> None:
        """See `ClaimStatement`; every whole run can be disputed."""

    def trace(self, work: Path, engine: Engine | None = None, device: str = "cpu") -> RecordTrace:
        """See `ClaimStatement`."""
        own = engine or torch_engine(device)
        require_within_bounds(own.name)
        source = TrainingSource(lambda: self.evidence, partial(graph_replayer, device=device))
        return RecordTrace(records_of(self.run), work, own, source)

    def check(self, view: OpeningView) -> tuple[OpenQuestion, ...]:
        """See `ClaimStatement`."""
        return tuple(OpenQuestion(text, partial(self._rule_start, view)) for text in check_step(self.training, view))

    @property
    def questions_of_records(self) -> tuple[OpenQuestion, ...]:
        """See `ClaimStatement`."""
        text = "whether the run is that of its spec takes an audit"
        return (OpenQuestion(text, lambda device, *_: rule_by_audit(self.training, device)),)

    def doubt(self, own: Recomputation) -> Doubt | None:
        """See `ClaimStatement`."""
        with supplied():
            replays = Replays(self.training, own.device)
        found = doubt_training(self.training, replays, self._audited(own.device))
        own.work.replayed += self.evidence.steps + replays.steps
        return found

    def unseen(self, own: Recomputation) -> tuple[str, ...]:
        """See `ClaimStatement`; by the limits of the windows between anchors."""
        training, marks = self.training, sorted(self.evidence.anchors)
        try:
            windows = [training.limits.near(start, end - start) for start, end in pairwise(marks)]
        except UnavailableError:
            return ()  # bits were compared
        share = max((MARGIN * each.weights.overall for each in windows), default=0.0)
        withdrawn = sorted({name for each in windows for name in each.withdrawn})
        told = f"weights off by less than {share:.2g} of their update between two anchors, as by a layer in fewer bits"
        return (told, *(f"{name}, which the calibrated limits do not tell from rounding" for name in withdrawn))

    def _audited(self, device: str) -> TrainingReport:
        """The report of a full audit, which rechecks every anchor when it reads it."""
        report = audit_whole(self.training, device)
        if report.verdict.unavailable:
            self.require_whole()  # a missing anchor was withheld, which is the prover's fault
        anchors = [finding for finding in report.verdict.findings if finding.name in ANCHORS]
        require_agreement(str(self.run.path), Findings(anchors))
        self.is_whole = True
        return report

    def rule_record(self, line: bytes, device: str | None) -> Ruled:
        """See `ClaimStatement`."""
        return rule_training_record(self.training, line, device)

    def _rule_start(self, view: OpeningView, device: str, margin: float, work: ChallengerWork) -> Ruled:
        """Rule on the opened state before the step, by a replay from the anchor before it."""
        replays = Replays(self.training, device)
        names = [each.name for each in view.graph.inputs if each.name.startswith(STATE_PREFIXES)]
        step = int(view.value("position.step").values()) + 1
        wrong = objection(replays.check_before(view.values(names), step), margin)
        work.replayed += replays.steps
        return (
            (Fault.PROVER, wrong) if wrong else (Fault.CHALLENGER, f"the state before step {step} is that of a replay")
        )


# Read the statement in a folder, and keep the statements of posted claims in memory.


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

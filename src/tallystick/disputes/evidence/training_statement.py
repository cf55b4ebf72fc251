"""A claim about a training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

from tallystick.audits.calibration import shipped_calibration
from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.report import Report
from tallystick.commitments.digests import Digest
from tallystick.disputes.evidence.claim_statement import Levels, OpenQuestion, Recomputation
from tallystick.disputes.evidence.claimed_training import ClaimedTraining
from tallystick.disputes.evidence.doubts import MARGIN, doubt_training
from tallystick.disputes.evidence.full_audit import audit_whole
from tallystick.disputes.evidence.gathering import check_anchors, gather_records, require_agreement
from tallystick.disputes.evidence.locate import ChallengerWork
from tallystick.disputes.evidence.opened_step import check_step
from tallystick.disputes.evidence.opening_sources import graph_replayer
from tallystick.disputes.evidence.replays import Replays, objection
from tallystick.disputes.evidence.rulings import Ruled, rule_by_audit, rule_training_record
from tallystick.disputes.evidence.traces import (
    RecordTrace,
    TrainingSource,
    records_of,
    require_within_bounds,
    torch_engine,
)
from tallystick.disputes.evidence.view import OpeningView, supplied
from tallystick.disputes.game.protocols import Doubt
from tallystick.errors import UnavailableError
from tallystick.graphs.engine import Engine
from tallystick.judging.fault import Fault
from tallystick.judging.findings import Findings
from tallystick.store.run import RunDirectory
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.claim import Log
from tallystick.workloads.names import STATE_PREFIXES
from tallystick.workloads.origin import Origin

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

    def _audited(self, device: str) -> Report:
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

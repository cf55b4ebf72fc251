"""What a prover can open of its claim: of a training, of calls of a model, or of operators that lie open already.

Nothing is computed before somebody asks: the records of a run are read, and the operators below one record are made by
replaying it when a dispute stands there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.inference import Calls
from tallystick.disputes.evidence.operators import KeptOperators, keep, require_posted, root_of
from tallystick.disputes.evidence.records import Records, record_file
from tallystick.disputes.evidence.subjects import (
    MakeReplayer,
    graph_replayer,
    subject_of_call,
    subject_of_step,
    whole_calls,
    whole_evidence,
)
from tallystick.disputes.game.protocols import Descent, OpenedLeaves, Trace
from tallystick.disputes.game.state import Dispute
from tallystick.documents.files import read_document
from tallystick.errors import UsageError
from tallystick.graphs.engine import Engine
from tallystick.judging.opening.files import OPENING
from tallystick.operators.engines import lines_of
from tallystick.store.inference import InferenceDirectory, claims_inference
from tallystick.store.run import RunDirectory
from tallystick.transcripts.opening import Opening
from tallystick.transcripts.record import StepRecord, read_record

if TYPE_CHECKING:
    from tallystick.recorders.step_opening import OpeningSource

SubjectOf = Callable[[bytes], "OpeningSource | None"]
"""What is opened below a record; `None` for one that has no operators. Takes its line."""


def trace_for(run: Path, work: Path, engine: Engine | None = None, device: str = "cpu") -> Trace:
    """The trace of a run directory, an inference directory or an opening directory; `work` is kept between calls.

    `engine` computes the operators that are opened, PyTorch on `device` by default. Raises `UnavailableError` where
    the claim is missing or the device is not there, `UsageError` where the engine is known to lie outside the bounds:
    a referee holds everybody to them.
    """
    if (run / OPENING).is_file():
        _refuse_outside(Opening.from_bytes(read_document(run / OPENING), OPENING).engine)
        return OperatorTrace(run)
    own = engine or torch_engine(device)
    _refuse_outside(own.name)
    if claims_inference(run):
        return trace_of_calls(InferenceDirectory(run), work, own)
    return trace_of_training(RunDirectory(run), work, own, lambda evidence: graph_replayer(evidence, device))


def trace_of_training(
    run: RunDirectory, work: Path, engine: Engine, make: MakeReplayer = graph_replayer
) -> RecordTrace:
    """The trace of a training; `make` builds what brings it to the step that is opened."""
    source = TrainingSource(run, make)
    return RecordTrace(Records(run.transcript_path, run.claim().transcript.size), work, engine, source)


def trace_of_calls(run: InferenceDirectory, work: Path, engine: Engine) -> RecordTrace:
    """The trace of calls of a model."""
    return RecordTrace(Records(run.transcript_path, run.claim().transcript.size), work, engine, CallSource(run))


@dataclass(frozen=True)
class RecordTrace:
    """A claim over records, of which each may have operators below; implements `parties.Trace`."""

    records: Records
    work: Path
    engine: Engine
    subject: SubjectOf

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """The leaves at `places`, with their records, or with what crosses the cuts after them."""
        if dispute.level > 1:
            return self.records.partition(places)
        return self._posted(dispute).partition(dispute.low, places)

    def descend(self, dispute: Dispute) -> Descent | None:
        """The operators below the record that is left, replayed now or kept; `None` if it has none."""
        kept = self.operators(dispute.low)
        return None if kept is None else kept.descent(self.records.cut(dispute.low))

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The operator that is left, or a record that has no operators."""
        if dispute.level == 1:
            return self._posted(dispute).reveal(dispute.low)
        opened = self.records.line(dispute.low)
        return OpenedLeaves((self.records.cut(dispute.low),), {record_file(dispute.low): opened.line})

    def operators(self, place: int) -> KeptOperators | None:
        """The operators below the record at `place`; raises what a replay raises."""
        folder = self.work / "operators" / str(place)
        if folder.exists():
            return KeptOperators.read(folder)
        subject = self.subject(self.records.line(place).line)
        return None if subject is None else keep(folder, lambda out: self.open(subject, out))

    def open(self, subject: OpeningSource, out: Path) -> None:
        """Write the operators of a subject, and all their values."""
        from tallystick.recorders.step_opening import open_operators

        open_operators(subject, out, self.engine)

    def _posted(self, dispute: Dispute) -> KeptOperators:
        """The kept operators under the dispute's root; the record above them is the leaf that was opened last."""
        kept = self._kept_under(dispute.root) or self.operators(self.records.place_of(dispute.leaf))
        assert kept is not None  # the dispute descended below this record
        return require_posted(kept, dispute.root)

    def _kept_under(self, root: str) -> KeptOperators | None:
        found = (folder for folder in _kept_folders(self.work) if root_of(folder) == root)
        return next(map(KeptOperators.read, found), None)


@dataclass(frozen=True)
class OperatorTrace:
    """A claim over operators that were all committed to beforehand; implements `parties.Trace`."""

    folder: Path

    @cached_property
    def kept(self) -> KeptOperators:
        """The opened operators."""
        return KeptOperators.read(self.folder)

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """The leaves at `places`, with what crosses the cuts after them."""
        return require_posted(self.kept, dispute.root).partition(dispute.low, places)

    def descend(self, dispute: Dispute) -> Descent | None:
        """`None`: there is nothing below an operator."""
        return None

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The operator that is left, with what it read and gave."""
        return require_posted(self.kept, dispute.root).reveal(dispute.low)


@dataclass(frozen=True)
class TrainingSource:
    """Steps of a training; `make` builds what replays up to them."""

    run: RunDirectory
    make: MakeReplayer = graph_replayer

    @cached_property
    def evidence(self) -> CheckedRun:
        """The run, rechecked."""
        return whole_evidence(self.run)

    def __call__(self, line: bytes) -> OpeningSource | None:
        """The step of this record; `None` for a header, an anchor, a failure, or a run without a step graph."""
        record = read_record(line, "record")
        if not isinstance(record, StepRecord) or self.evidence.program is None:
            return None
        return subject_of_step(self.evidence, record.index, self.make)


@dataclass(frozen=True)
class CallSource:
    """Calls of a model."""

    run: InferenceDirectory

    @cached_property
    def calls(self) -> Calls:
        """The directory, rechecked."""
        return whole_calls(self.run)

    def __call__(self, line: bytes) -> OpeningSource | None:
        """The call of this record."""
        from tallystick.transcripts.record import CallRecord

        return subject_of_call(self.calls, CallRecord.from_bytes(line, "record").index)


def _refuse_outside(engine: str | None) -> None:
    if lines := [each.why for each in lines_of(engine)]:
        raise UsageError(f"{engine} lies outside the bounds ({'; '.join(lines)}): open with another engine")


def torch_engine(device: str = "cpu") -> Engine:
    """PyTorch; raises `UnavailableError` where the device is not there."""
    from tallystick.frameworks.torch.engine import TorchEngine

    return TorchEngine(device)


def _kept_folders(work: Path) -> list[Path]:
    folder = work / "operators"
    return sorted(each for each in folder.iterdir() if not each.name.startswith(".")) if folder.is_dir() else []

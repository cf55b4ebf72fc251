"""What a prover can open of its claim: of a training, of calls of a model, or of operators that are open already.

Nothing is computed in advance. The records of a run are read from its transcript. The operators below one record are
computed by a replay when a dispute reaches that record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.inference import Calls
from tallystick.disputes.evidence.gathering import gather_records, gather_whole
from tallystick.disputes.evidence.opening_sources import (
    MakeReplayer,
    graph_replayer,
    out_of_reach,
    source_of_call,
    source_of_step,
)
from tallystick.disputes.evidence.operators import KeptOperators, keep, require_posted, root_of
from tallystick.disputes.evidence.records import Records, record_file
from tallystick.disputes.game.protocols import Descent, OpenedLeaves
from tallystick.disputes.game.state import Dispute
from tallystick.errors import UsageError
from tallystick.graphs.engine import Engine
from tallystick.judging.opening.files import OPERATOR
from tallystick.operators.engines import lines_of
from tallystick.store.inference import InferenceDirectory
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import CallRecord, StepRecord, read_record

if TYPE_CHECKING:
    from tallystick.recorders.step_opening import OpeningSource

SubjectOf = Callable[[bytes], "OpeningSource | None"]
"""Takes the line of a record, and gives what is opened below it; `None` for a record without operators."""


def trace_of_training(
    run: RunDirectory, work: Path, engine: Engine, make: MakeReplayer = graph_replayer
) -> RecordTrace:
    """The trace of a training, by any engine; `make` builds the replayer that goes to the opened step."""
    return RecordTrace(records_of(run), work, engine, TrainingSource(lambda: gather_records(run), make))


def trace_of_calls(run: InferenceDirectory, work: Path, engine: Engine) -> RecordTrace:
    """The trace of calls of a model, by any engine."""
    return RecordTrace(records_of(run), work, engine, CallSource(lambda: gather_whole(run)))


def records_of(run: RunDirectory | InferenceDirectory) -> Records:
    """The claimed records of a run or of calls; raises `UnavailableError` if there is no claim yet."""
    return Records(run.transcript_path, run.claim().transcript.size)


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
        """The operators below the last record, replayed now or kept from before; `None` if it has none."""
        kept = self.operators(dispute.low)
        return None if kept is None else kept.descent(self.records.cut(dispute.low))

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The last operator, or the last record if it has no operators."""
        if dispute.level == 1:
            return self._posted(dispute).reveal(dispute.low)
        opened = self.records.line(dispute.low)
        return OpenedLeaves((self.records.cut(dispute.low),), {record_file(dispute.low): opened.line})

    def operators(self, place: int) -> KeptOperators | None:
        """The operators below the record at `place`, `None` if it has none; raises whatever a replay raises."""
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
        folder = self.work / "operators"
        kept = sorted(each for each in folder.iterdir() if not each.name.startswith(".")) if folder.is_dir() else []
        return next((KeptOperators.read(each) for each in kept if root_of(each) == root), None)


@dataclass(frozen=True)
class OperatorTrace:
    """A claim over operators that were all committed to beforehand; implements `parties.Trace`."""

    folder: Path

    @cached_property
    def kept(self) -> KeptOperators:
        """The opened operators."""
        return KeptOperators.read(self.folder)

    def partition(self, dispute: Dispute, places: Sequence[int]) -> OpenedLeaves:
        """The leaves at `places`; the statement of the claim holds all values."""
        return OpenedLeaves(tuple(map(require_posted(self.kept, dispute.root).cut, places)))

    def descend(self, dispute: Dispute) -> Descent | None:
        """`None`: there is nothing below an operator."""
        return None

    def reveal(self, dispute: Dispute) -> OpenedLeaves:
        """The last operator."""
        kept = require_posted(self.kept, dispute.root)
        return OpenedLeaves((kept.cut(dispute.low),), {OPERATOR: kept.whole.operator(dispute.low).to_bytes()})


@dataclass(frozen=True)
class TrainingSource:
    """Steps of a training; the evidence is gathered for the first step, and `make` builds the replayer."""

    gather: Callable[[], CheckedRun]
    make: MakeReplayer = graph_replayer

    @cached_property
    def evidence(self) -> CheckedRun:
        """The run, with every digest rechecked."""
        return self.gather()

    def __call__(self, line: bytes) -> OpeningSource | None:
        """The step of this record; `None` for a header, an anchor, a failure, or a step that no graph leads to."""
        record = read_record(line, "record")
        if not isinstance(record, StepRecord) or self.evidence.program is None:
            return None
        if out_of_reach(self.evidence, record.index):
            return None
        return source_of_step(self.evidence, record.index, self.make)


@dataclass(frozen=True)
class CallSource:
    """Calls of a model; the evidence is gathered for the first call."""

    gather: Callable[[], Calls]

    @cached_property
    def calls(self) -> Calls:
        """The calls, with every digest rechecked."""
        return self.gather()

    def __call__(self, line: bytes) -> OpeningSource:
        """The call of this record."""
        return source_of_call(self.calls, CallRecord.from_bytes(line, "record").index)


def require_within_bounds(engine: str | None) -> None:
    """Raise `UsageError` for an engine that is known to exceed the bounds: a referee would convict its user."""
    if lines := [each.why for each in lines_of(engine)]:
        raise UsageError(f"{engine} lies outside the bounds ({'; '.join(lines)}): open with another engine")


def torch_engine(device: str = "cpu") -> Engine:
    """PyTorch on `device`; raises `UnavailableError` if the device is not there."""
    from tallystick.frameworks.torch.engine import TorchEngine

    return TorchEngine(device)

"""What a prover can open of its claim: records, operators, and values that cross a cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.opening import (
    MakeReplayer,
    OpeningSource,
    graph_replayer,
    open_operators,
    out_of_reach,
    source_of_call,
    source_of_step,
)
from tallystick.core.digests import Digest, digest_bytes, leaf_hash, prove_inclusion
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.files import read_document
from tallystick.core.safetensors import StateFile
from tallystick.core.tensor_writer import AppendedState
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.disputes.evidence.statement import OperatorsStatement, Statement
from tallystick.disputes.evidence.training import TrainingStatement
from tallystick.disputes.evidence.view import Operators, read_operators, record_file
from tallystick.disputes.game.moves import Cut
from tallystick.disputes.game.protocols import Descent, OpenedLeaves
from tallystick.disputes.game.state import Dispute
from tallystick.formats.openings import Opening
from tallystick.formats.records import CallRecord, StepRecord, read_record
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.formats.store.log import OpenedLine, open_line, read_lines
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.execution import Engine
from tallystick.programs.files import constants_path
from tallystick.programs.graph import Ref
from tallystick.programs.operators.precision import lines_of
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.opening.files import (
    GRAPH,
    HEADER_BYTES_MAX,
    NAME_BYTES,
    OPENING,
    OPERATOR,
    OPERATORS,
    VALUES,
    value_name,
)

# The records of a claim as leaves: each with the proof of its place, and its canonical line as a file.


@dataclass(frozen=True)
class Records:
    """The records of a finished run, in its transcript of `size` lines."""

    path: Path
    size: int

    def partition(self, places: Sequence[int]) -> OpenedLeaves:
        """The records at `places`."""
        lines = [self.line(place) for place in places]
        return OpenedLeaves(tuple(map(_cut, lines)), {record_file(each.index): each.line for each in lines})

    def cut(self, place: int) -> Cut:
        """One record as a leaf."""
        return _cut(self.line(place))

    def line(self, place: int) -> OpenedLine:
        """One record with its proof."""
        return open_line(self.path, place, self.size)

    def place_of(self, leaf: str) -> int:
        """The place of the record with this leaf hash; raises `UnavailableError` if there is none."""
        for place, line in enumerate(read_lines(self.path)):
            if leaf_hash(line).hex() == leaf:
                return place
        raise UnavailableError(f"{self.path.name}: holds no record with the leaf {leaf[:16]}…")


def _cut(opened: OpenedLine) -> Cut:
    return Cut(leaf=leaf_hash(opened.line).hex(), proof=tuple(each.hex() for each in opened.proof))


# The operators of one record, opened once and kept: the prover answers every move of a dispute from these files.
#
# Two replays may differ in their last bits, and a prover that posts values of both contradicts itself. So the first
# files are kept, also across restarts of the program, and values of another replay are never posted.

PARTS: Final = ".parts"
"""Where the files of answers lie in the folder of an opening."""
Open = Callable[[Path], None]
"""Writes the operators of a record, and all their values, into an empty folder."""


@dataclass(frozen=True)
class KeptOperators:
    """An opening directory with all values, as the prover answers from it."""

    operators: Operators

    @classmethod
    def read(cls, folder: Path) -> KeptOperators:
        """Read a directory that `tally open --operators` wrote."""
        return cls(read_operators(folder))

    @property
    def whole(self) -> WholeOpening:
        """The opening."""
        return self.operators.whole

    @property
    def root(self) -> str:
        """The root of the operators' tree, in hexadecimal digits."""
        return digest_bytes(self.whole.opening.operators.root).hex()

    @property
    def size(self) -> int:
        """How many operators there are."""
        return len(self.whole.lines)

    def partition(self, low: int, places: Sequence[int]) -> OpenedLeaves:
        """The leaves at `places`, with the values that cross the cuts after them."""
        names = dict[Ref, Digest]()
        for place in range(low, places[-1] + 1):
            names |= self.whole.record(place).outputs
        crossing = (names[ref] for ref in self.operators.cuts.opened_at(low, places))
        return OpenedLeaves(tuple(map(self.cut, places)), self._values(crossing))

    def descent(self, record: Cut) -> Descent:
        """The tree of the operators, with the opening, the graph, and the values at both ends of the step."""
        folder, opening = self.whole.folder, self.whole.opening
        names = [OPENING, OPERATORS, GRAPH]
        if constants_path(folder / GRAPH).is_file():
            names.append(constants_path(folder / GRAPH).name)
        ends = self._values((*opening.sources.values(), *opening.results.values()))
        return Descent(record, self.root, self.size, {name: folder / name for name in names} | ends)

    def reveal(self, place: int) -> OpenedLeaves:
        """One operator with the values that it read and gave."""
        operator = self.whole.operator(place)
        named = (*operator.record.inputs.values(), *operator.record.outputs.values())
        return OpenedLeaves((self.cut(place),), {OPERATOR: operator.to_bytes(), **self._values(named)})

    def cut(self, place: int) -> Cut:
        """The leaf of one operator, with its proof."""
        proof = prove_inclusion(self.whole.leaves, place, self.size)
        return Cut(leaf=leaf_hash(self.whole.lines[place]).hex(), proof=tuple(each.hex() for each in proof))

    def _values(self, names: Iterable[Digest]) -> dict[str, bytes | Path]:
        """A file with these of the values, which is written where it is not there yet."""
        wanted = tuple(dict.fromkeys(names))
        path = self.whole.folder / PARTS / f"{sha256(''.join(wanted).encode()).hexdigest()}.safetensors"
        if wanted and not path.is_file():
            draft, tensors = path.with_name(f".{path.name}"), self._tensors(wanted)
            draft.parent.mkdir(exist_ok=True)
            with AppendedState(draft, map(TensorSpec.of, tensors.values()), NAME_BYTES) as file:
                for name, tensor in tensors.items():
                    file.append(value_name(name), tensor)
            draft.replace(path)
        return {VALUES: path} if wanted else {}

    def _tensors(self, names: Iterable[Digest]) -> dict[Digest, Tensor]:
        """Views of these of the values, in the order of the names."""
        with StateFile(self.whole.folder / VALUES, header_bytes_max=HEADER_BYTES_MAX) as file:
            return {name: file.tensor(value_name(name)) for name in names}


def keep(folder: Path, write: Open) -> KeptOperators:
    """The operators in `folder`; if they are not there yet, `write` writes them, completely or not at all.

    Raises whatever `write` raises.
    """
    if not folder.exists():
        draft = folder.with_name(f".{folder.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        write(draft)
        os.sync()
        draft.replace(folder)
    return KeptOperators.read(folder)


def require_posted(kept: KeptOperators, root: str) -> KeptOperators:
    """Raise `UnavailableError` unless these are the operators that were posted."""
    if kept.root != root:
        raise UnavailableError(
            "the replay that the posted operators came from is not kept here, and another replay has other bits"
        )
    return kept


def root_of(folder: Path) -> str:
    """The root of the operators that a folder holds, in hexadecimal digits; reads one small file."""
    opening = Opening.from_bytes(read_document(folder / OPENING), OPENING)
    return digest_bytes(opening.operators.root).hex()


# What a prover can open of its claim: of a training, of calls of a model, or of operators that are open already.
#
# Nothing is computed in advance. The records of a run are read from its transcript. The operators below one record are
# computed by a replay when a dispute reaches that record.

SubjectOf = Callable[[bytes], OpeningSource | None]
"""Takes the line of a record, and gives what is opened below it; `None` for a record without operators."""


def trace_of(
    statement: Statement, work: Path, engine: Engine | None = None, device: str = "cpu"
) -> RecordTrace | OperatorTrace:
    """What the prover of a statement can open of it; `work` is a folder that is kept between calls.

    `engine` computes the operators that are opened, PyTorch on `device` by default. Raises `UsageError` for an engine
    that is known to exceed the bounds, because a referee would convict its user.
    """
    if isinstance(statement, OperatorsStatement):  # all values are in the folder
        require_within_bounds(statement.opening.engine)
        return OperatorTrace(statement.folder.path)
    own = engine or torch_engine(device)
    require_within_bounds(own.name)
    if isinstance(statement, TrainingStatement):
        source = TrainingSource(lambda: statement.evidence, partial(graph_replayer, device=device))
        return RecordTrace(records_of(statement.run), work, own, source)

    def subject(line: bytes) -> OpeningSource:
        return source_of_call(statement.calls, CallRecord.from_bytes(line, "record").index)

    return RecordTrace(records_of(statement.run), work, own, subject)


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


def require_within_bounds(engine: str | None) -> None:
    """Raise `UsageError` for an engine that is known to exceed the bounds: a referee would convict its user."""
    if lines := [each.why for each in lines_of(engine)]:
        raise UsageError(f"{engine} lies outside the bounds ({'; '.join(lines)}): open with another engine")


def torch_engine(device: str = "cpu") -> Engine:
    """PyTorch on `device`; raises `UnavailableError` if the device is not there."""
    from tallystick.engines.torch.engine import TorchEngine

    return TorchEngine(device)

"""The statement of a claim, read once: a training, recorded calls or operators; whether an answer belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from tallystick.audits.calls import Calls
from tallystick.audits.opening import gather_whole
from tallystick.core.digests import Digest, digest_bytes, leaf_hash
from tallystick.core.errors import ProofError
from tallystick.core.files import read_document
from tallystick.core.tensor_digests import StateDigests
from tallystick.core.tensors import State, Tensor
from tallystick.disputes.evidence.locate import Leeway, deviation
from tallystick.disputes.evidence.training import TrainingStatement, check_step
from tallystick.disputes.evidence.view import OpeningView, as_prover_fault, places_of, record_file, require_claim
from tallystick.disputes.game.protocols import DisputeView
from tallystick.disputes.game.state import PostedClaim, Tree
from tallystick.formats.claims import Log
from tallystick.formats.openings import Opening, state_digest_of
from tallystick.formats.records import CallRecord
from tallystick.formats.spec import Origin
from tallystick.formats.store.directories import InferenceDirectory, OpeningDirectory, read_statement
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import BATCH
from tallystick.verdicts.opening.binding import check_binding
from tallystick.verdicts.verdict import require

# The other two kinds of claims beside a training (`training.py`).
#
# A statement reads its files once, on first use, and rechecks every digest in them at that time. The leaves of its
# `tree` are records if `levels` is 2, and operators if it is 1. `known` are values that its reader has, by the digests
# that they were compared with. What each party does with a statement stands with that party: `traces.trace_of`,
# `doubting.OpenedDoubter`, `judging.DisputeJudge`.


@dataclass
class CallsStatement:
    """Recorded calls of a model under a claim."""

    run: InferenceDirectory
    is_whole: bool = field(default=False, init=False)
    levels: ClassVar[int] = 2

    @property
    def tree(self) -> Log:
        """The tree of the records."""
        return self.run.claim().transcript

    @cached_property
    def calls(self) -> Calls:
        """The calls of the directory, with every digest rechecked; raises `ProofError`."""
        return gather_whole(self.run)

    @cached_property
    def digested(self) -> tuple[State, StateDigests]:
        """The claimed weights by name, and their digests: views of the file, which nobody changes.

        Raises `UnavailableError` without a file, `ProofError` for other weights.
        """
        return self.calls.digested_weights(mapped=True)

    @property
    def known(self) -> Mapping[Digest, Tensor]:
        """The claimed weights, which the reader compared with their digests."""
        weights, digests = self.digested
        return {each.digest: weights[name] for name, each in digests.entries}

    def require_whole(self) -> None:
        """Recheck every file, also weights, inputs and outputs, once; raises `ProofError`."""
        if self.is_whole:
            return
        with as_prover_fault():
            assert self.digested is not None  # reading raises
            for record in self.calls.records:
                self.calls.inputs(record)
                self.calls.outputs(record)
        self.is_whole = True


@dataclass(frozen=True)
class OperatorsStatement:
    """Operators that were all committed to beforehand: the one-round mode."""

    folder: OpeningDirectory
    levels: ClassVar[int] = 1
    known: ClassVar[Mapping[Digest, Tensor]] = {}

    @property
    def tree(self) -> Log:
        """The tree of the operators."""
        return self.opening.operators

    @cached_property
    def opening(self) -> Opening:
        """The opening."""
        return self.folder.opening()

    def require_whole(self) -> None:
        """Read the opening alone: whoever doubts or judges rechecks the operators."""
        assert self.opening is not None  # reading raises


Statement: TypeAlias = TrainingStatement | CallsStatement | OperatorsStatement

# Read the statement in a folder, and keep the statements of posted claims in memory.


def statement_at(path: Path, levels: int | None = None, origins: tuple[Origin, ...] = ()) -> Statement:
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
    _read: dict[tuple[Path, Tree], Statement] = field(default_factory=dict)

    def whole(self, path: Path, claim: PostedClaim) -> Statement:
        """As `claimed`; raises `ProofError` also if a file of the statement is missing or not the stated one."""
        statement = self.claimed(path, claim)
        with as_prover_fault():
            statement.require_whole()
        return statement

    def claimed(self, path: Path, claim: PostedClaim) -> Statement:
        """The statement of a claim; raises `ProofError` if it is about another tree than the claim."""
        key = (path, claim.tree)
        if key not in self._read:
            with as_prover_fault():
                statement = statement_at(path, claim.levels, self.origins)
                tree = (digest_bytes(statement.tree.root).hex(), statement.tree.size)
                require(tree == (claim.root, claim.size), "the statement is about another tree than the claim")
            self._read[key] = statement
        return self._read[key]


# Whether opened operators are those of a recorded call.
#
# Graph, weights and inputs have to be exact. Outputs may differ as far as honest kernels do.

WEIGHTS: Final = ("weights.", "buffers.")


def check_call(calls: Calls, view: OpeningView) -> None:
    """Raise `ProofError` unless the opened operators are those of a claimed call."""
    opening, claim = view.opening, calls.claim
    record = opening.opened_record()
    if not isinstance(record, CallRecord):
        raise ProofError("the opened record is no call")
    require_claim(opening, claim, claim.graph)
    weights = {name: named for name, named in opening.sources.items() if name.startswith(WEIGHTS)}
    require(state_digest_of(weights | opening.rest_before) == claim.weights, "the operators read other weights")
    given = {name.removeprefix(BATCH): named for name, named in opening.sources.items() if name.startswith(BATCH)}
    require(state_digest_of(given) == record.inputs, f"the operators read other inputs than call {record.index}")
    if state_digest_of(opening.results) != record.outputs:
        _check_outputs(calls, view, record)


def _check_outputs(calls: Calls, view: OpeningView, record: CallRecord) -> None:
    """Compare outputs with other bits than the recorded ones: another kernel is allowed, another model is not."""
    recorded = calls.outputs(record)
    require(recorded.keys() == view.opening.results.keys(), "the operators give other outputs than were recorded")
    leeway = Leeway.of(view.graph.nodes, view.cuts.specs)
    given = {output.name: output.value for output in view.graph.outputs}
    for name, opened in view.results(recorded).items():
        far = deviation(recorded[name], opened, leeway, given[name])
        require(far <= 1.0, f"{name} of call {record.index} lies {far:.3g} tolerances from the recorded one")


# Whether the prover's last answer is consistent and belongs to its claim: the ground of a protest.
#
# The records of a partition have to be those under its leaves. The operators have to follow from one another under the
# posted root, and to belong to the opened record and to the statement of the claim. Everything that had to be opened
# has to be there.


def check_descent(answered: DisputeView, statement: Statement, view: OpeningView) -> str:
    """Raise `ProofError` unless the operators are those of the claim.

    Returns the question about a training that only a replay can decide; empty if none stays open.
    That values are opened is seen, and their bytes are not read: who runs children reads each value before using it,
    and a judge reads all. Raises `UnavailableError` if no limits are known for the comparison of states.
    """
    view.check(answered.dispute)
    if answered.descended is not None:
        leaf = leaf_hash(view.opening.record.encode()).hex()
        require(leaf == answered.descended.leaf, "the opening is about another record than was opened")
    view.require_ends()
    match statement:
        case TrainingStatement():
            return check_step(statement, view)
        case CallsStatement():
            check_call(statement.calls, view)
        case OperatorsStatement():
            require(view.opening == statement.opening, "another opening than the claimed one")
            check_binding(view.opening)
    return ""


def check_records(answered: DisputeView) -> None:
    """Raise `ProofError` unless the records of the last partition are there, under the posted leaves."""
    dispute = answered.dispute
    require(bool(answered.turns), "no records were opened")
    for place, leaf in zip(places_of(dispute), dispute.cuts, strict=True):
        with as_prover_fault():
            line = read_document(answered.turns[-1] / record_file(place))
        require(leaf_hash(line).hex() == leaf, f"record {place} is not the one under the posted leaf")

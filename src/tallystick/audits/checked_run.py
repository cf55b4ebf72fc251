"""Reads a run directory and checks every digest, root and binding in it; nothing is run."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tallystick.audits.policy import Policy
from tallystick.audits.step_graphs import check_graph_file, open_step_graph, read_named
from tallystick.audits.varying_steps import VaryingSteps
from tallystick.core.digests import Digest, Frontier, digest_from, leaf_hash
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.safetensors import read_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.formats.claims import Claim, Log
from tallystick.formats.data.preparation import check_stated_tokenizer
from tallystick.formats.data.samples import BatchPlan, Dataset
from tallystick.formats.data.step_program import batch_plan, open_data
from tallystick.formats.recipe import learning_rate
from tallystick.formats.records import (
    AnchorRecord,
    FailedRecord,
    HeaderRecord,
    Record,
    StepRecord,
    TraceEntry,
    anchor_file,
    batch_file,
    read_record,
)
from tallystick.formats.spec import Chain, Environment, Spec
from tallystick.formats.store.log import open_line, read_lines
from tallystick.formats.store.run import ANCHOR_BYTES_MAX, RunDirectory
from tallystick.programs.step_names import BATCH, GENERATOR_MOVE, POSITION, weights_of
from tallystick.verdicts.verdict import Findings, bound_by_digest, require

if TYPE_CHECKING:
    from tallystick.formats.data.step_program import StepProgram
    from tallystick.formats.optimizers import GroupRule


# Reads a log against the root that a claim names: whether these are the lines, and whether their form is known.


@dataclass(frozen=True)
class ReadLog:
    """A log that was read to its end: its tree, and what is wrong with the first line whose form is not known here."""

    name: str
    frontier: Frontier
    unread: MalformedError | None

    def check(self, log: Log) -> None:
        """Raise `ProofError` unless these are the lines of `log`, `MalformedError` if they are and one is unread."""
        size, because = self.frontier.size, f"{self.unread}; " if self.unread else ""
        require(size == log.size, f"{because}{self.name} holds {size} records, the claim says {log.size}")
        is_claimed = digest_from(self.frontier.root()) == log.root
        require(is_claimed, f"{because}{self.name} does not have the root that the claim names")
        if self.unread is not None:
            raise self.unread


def follow_lines(path: Path, policy: Policy, follow: Callable[[bytes, str], object]) -> ReadLog:
    """Hand over the lines of a log, up to one without a known form; raises `ProofError` for a torn line."""
    frontier = Frontier.empty()
    unread: MalformedError | None = None
    with bound_by_digest():
        for number, line in enumerate(read_lines(path), 1):
            if number > policy.records_max:
                raise UnavailableError(f"{path.name}: more than the {policy.records_max} records allowed")
            frontier = frontier.append(leaf_hash(line))
            if unread is None:
                try:
                    follow(line, f"{path.name}: line {number}")
                except MalformedError as error:
                    unread = error
    return ReadLog(path.name, frontier, unread)


# Reads a run directory and checks every digest, root and binding in it; nothing is run.
#
# The transcript is read in one pass, and each anchor once: `walk_anchors` hands every state on while it is in memory.

RATE_TOLERANCE = 1e-12


@dataclass
class Records:
    """The records of a run: anchors and what varies between steps in memory, each step where it stands in the file.

    The pass over the transcript adds to them, and nothing else does. `are_complete` once it reached the end and
    understood every line. `moves` says of each batch that was read how PyTorch's generator was moved before its step.
    """

    path: Path
    anchors: dict[int, AnchorRecord] = field(default_factory=dict)
    varying: VaryingSteps = field(default_factory=VaryingSteps)
    moves: dict[int, Tensor] = field(default_factory=dict)
    are_complete: bool = False
    failures: int = 0
    training_seconds: float = 0.0
    _places: array[int] = field(default_factory=lambda: array("Q"))
    _latest: StepRecord | None = None

    @property
    def steps(self) -> int:
        """The number of step records."""
        return len(self._places)

    @property
    def last_anchor(self) -> AnchorRecord | None:
        """The record of the last anchor."""
        return self.anchors.get(max(self.anchors, default=-1))

    def add(self, record: Record, place: int) -> None:
        """Keep a record that was checked; it starts `place` bytes into the transcript."""
        if isinstance(record, AnchorRecord):
            self.anchors[record.index] = record
        elif isinstance(record, FailedRecord):
            self.failures += 1
        elif isinstance(record, StepRecord):
            self._places.append(place)

    def step(self, index: int) -> StepRecord:
        """The record of step `index`, read from its place in the transcript; the latest one is kept.

        Its form was checked in the pass over the transcript. Raises `ProofError` where another record stands there now.
        """
        if self._latest is not None and self._latest.index == index:
            return self._latest
        with self.path.open("rb") as file:
            file.seek(self._places[index - 1])
            line = file.readline().removesuffix(b"\n")
        try:
            record = StepRecord.model_validate_json(line)
        except ValidationError:
            record = None
        if record is None or record.index != index:
            raise ProofError(f"transcript.jsonl changed while it was audited (step {index})")
        self._latest = record
        return record


@dataclass(frozen=True)
class CheckedRun:
    """A run directory as evidence; `findings` says which checks it passed, and every stage of an audit adds to them."""

    run: RunDirectory
    claim: Claim
    spec: Spec
    environment: Environment
    records: Records
    findings: Findings
    dataset: Dataset | None = None
    plan: BatchPlan | None = None
    program: StepProgram | None = None

    @property
    def anchors(self) -> dict[int, AnchorRecord]:
        """The records of the anchors, by the step after which each was written."""
        return self.records.anchors

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return self.records.steps

    @property
    def optimizer(self) -> tuple[GroupRule, ...]:
        """The rules of a loop's optimizer; none where the claim withdraws the step graph, which they belong to."""
        return () if self.claim.no_graph is not None else self.spec.optimizer or ()

    @property
    def varies(self) -> bool:
        """Whether there are steps without a graph, with one of their own, or with other settings."""
        varying = self.records.varying
        return bool(varying.graphs or varying.settings or self.claim.withdrawn)

    @property
    def ends_as_claimed(self) -> bool:
        """Whether the last anchor names the final state of the claim."""
        last = self.records.last_anchor
        return last is not None and last.digest == self.claim.final_state

    def step(self, index: int) -> StepRecord:
        """The record of step `index`; raises what `Records.step` raises."""
        return self.records.step(index)

    def state(self, anchor: int, bytes_max: int = ANCHOR_BYTES_MAX) -> dict[str, Tensor]:
        """The state of an anchor, at most `bytes_max`; raises `ProofError` unless its digest is the recorded one."""
        record, named = self.anchors[anchor], "the state its record names"
        return _named_state(lambda: self.run.anchors.read(anchor, bytes_max), record.file, record.digest, named)

    def batch(self, index: int) -> State:
        """The kept batch of step `index` as the graph names it; raises `ProofError` unless it is the recorded one."""
        name = self.step(index).batch.digest
        require(name is not None, f"step {index} does not name the tensors it consumed")
        assert name is not None  # required above
        path = self.run.path / batch_file(name)
        batch = _named_state(
            lambda: read_state(path, canonical=True), batch_file(name), name, f"the batch of step {index}"
        )
        if (move := batch.get(GENERATOR_MOVE)) is not None and (move.dtype, move.shape) == ("I64", (2,)):
            self.records.moves[index] = move
        return {f"{BATCH}{tensor}": value for tensor, value in batch.items()}

    def rates(self, index: int) -> tuple[float, ...]:
        """The learning rates that step `index` records, one for each parameter group."""
        record = self.step(index)
        groups = len(record.optimizer or self.optimizer)
        return record.learning_rates or (record.learning_rate,) * groups


def _named_state(read: Callable[[], dict[str, Tensor]], file: str, name: Digest, what: str) -> dict[str, Tensor]:
    with bound_by_digest(f"{file} does not hold {what}"):
        state = read()
    require(state_digest(state) == name, f"{file} does not hold {what}")
    return state


def read_stated(run: RunDirectory, policy: Policy, findings: Findings) -> CheckedRun | None:
    """A run by its claim, spec and environment; `None` where one of them cannot be read: `findings` say why.

    A wrong digest rejects. The right digest over a format that this version cannot parse leaves the audit inconclusive.
    """
    claim = read_named(findings, run.claim_bytes, Claim, "claim", policy.claim, f"the expected claim {policy.claim}")
    if claim is None:
        return None
    spec = read_named(findings, run.spec_path, Spec, "spec", claim.spec)
    environment = read_named(findings, run.environment_path, Environment, "environment", claim.environment)
    if spec is None or environment is None:
        return None
    return CheckedRun(run, claim, spec, environment, Records(run.transcript_path), findings)


def check_records(stated: CheckedRun, policy: Policy) -> CheckedRun:
    """Check data, graph, records, timeline and tiles of a run whose statements were read."""
    evidence = open_evidence(stated, policy, lambda spec: open_data(spec, stated.run.data_path))
    _read_transcript(evidence, policy)
    _read_trace(evidence, policy)
    _check_tiles(evidence)
    return evidence


def open_evidence(stated: CheckedRun, policy: Policy, open_dataset: Callable[[Spec], Dataset]) -> CheckedRun:
    """Check the data and the step graph of a run; its records are read afterwards."""
    evidence, claim, spec, findings = stated, stated.claim, stated.spec, stated.findings
    if claim.no_graph is not None or claim.withdrawn is not None:
        with findings.check("claim"):
            require(spec.recipe is None, "the claim excuses a missing step graph, and a recipe needs none")
    with findings.check("data"), bound_by_digest():
        require(claim.data == spec.data_root, "the claim names another data root than the spec")
        if spec.data is not None:
            dataset = open_dataset(spec)
            _check_stated_data(stated.run, spec)
            evidence = replace(evidence, dataset=dataset, plan=batch_plan(spec, dataset))
    if spec.graph is not None:
        with findings.check("step graph"):
            evidence = replace(evidence, program=_open_graph(evidence, policy))
    return evidence


def _open_graph(evidence: CheckedRun, policy: Policy) -> StepProgram | None:
    """The program of the step graph. Where the recipe is replayed instead, its bytes are compared, and no more."""
    if policy.replay == "recipe" and evidence.spec.recipe is not None:
        check_graph_file(evidence.run.graph_path, evidence.spec.graph, "the spec")
        return None
    return open_step_graph(evidence, policy)


def _check_stated_data(run: RunDirectory, spec: Spec) -> None:
    """Compare the kinds of data and tokenizer that are committed to with those of the recipe."""
    recipe, commitment = spec.recipe, spec.data
    assert recipe is not None  # only a recipe has data
    assert commitment is not None
    require(commitment.kind == recipe.data.kind, f"the data is {commitment.kind}, the recipe's is {recipe.data.kind}")
    if commitment.tokens is not None:
        check_stated_tokenizer(run.data_path, commitment, recipe.tokenizer)


def _read_transcript(evidence: CheckedRun, policy: Policy) -> None:
    """Check root, order, batches and learning rates in one pass over all records; keeps eight bytes a step."""
    chain, place = Chain(evidence.spec), 0
    broken: ProofError | None = None

    def follow(line: bytes, where: str) -> None:
        nonlocal chain, place, broken
        record = read_record(line, where)
        if broken is None:
            try:
                chain = chain.follow(record)
                note_record(evidence, record, place)
            except ProofError as error:
                broken = error
        place += len(line) + 1

    with evidence.findings.check("transcript root"):
        read = follow_lines(evidence.run.transcript_path, policy, follow)
        evidence.records.are_complete = read.unread is None
        read.check(evidence.claim.transcript)
    if broken is None and not evidence.records.are_complete:
        return
    with evidence.findings.check("record order"):
        if broken is not None:
            raise broken
        chain.finish()


def note_record(evidence: CheckedRun, record: Record, place: int) -> None:
    """Check what a record says against the claim, the spec and the data, and keep it."""
    if isinstance(record, HeaderRecord):
        require(record.environment == evidence.claim.environment, "the header names another environment")
        return
    if isinstance(record, AnchorRecord):
        require(record.file == anchor_file(record.index), f"anchor {record.index} names the file {record.file}")
    elif isinstance(record, StepRecord):
        _check_step(evidence, record)
    evidence.records.add(record, place)
    if isinstance(record, FailedRecord):
        return
    summary = record.summary if isinstance(record, AnchorRecord) else record.post
    for bucket in (summary.fp16_rne, summary.grid):
        if bucket is not None and bucket.hints is not None:
            with evidence.findings.check("boundary hints", f"{record.kind} {record.index}"):
                evidence.run.read_blob(bucket.hints)


def _check_step(evidence: CheckedRun, record: StepRecord) -> None:
    """Compare what a record holds, its batch and its learning rate with what the spec determines."""
    recipe, plan = evidence.spec.recipe, evidence.plan
    summaries = record.post.model_dump(exclude_none=True).keys()
    wrong = sorted(summaries ^ evidence.spec.recorded.summaries_due(record.index))
    require(not wrong, f"step {record.index} lacks a summary that the spec asks for, or has another: {wrong}")
    if recipe is None or record.graph is not None or record.no_graph is not None or record.optimizer is not None:
        evidence.records.varying.note(evidence, record)
    if recipe is None:
        return
    require(record.learning_rates is None, f"step {record.index} names several learning rates, and its recipe one")
    require(record.gradient_norm is not None, f"step {record.index} lacks its gradient norm")
    checksummed = record.activation is not None
    require(checksummed == recipe.record.activation_checksum, f"step {record.index}: activation checksum")
    wanted = learning_rate(recipe, record.index)
    require(
        abs(record.learning_rate - wanted) <= RATE_TOLERANCE * abs(wanted),
        f"step {record.index} used learning rate {record.learning_rate}, the schedule gives {wanted}",
    )
    if plan is not None:
        indices = tuple(int(position) for position in plan.indices(record.index))
        require(
            record.batch.split == "train" and record.batch.indices == indices,
            f"step {record.index} consumed other examples than the data root and the seed determine",
        )


def _read_trace(evidence: CheckedRun, policy: Policy) -> None:
    def follow(line: bytes, where: str) -> None:
        evidence.records.training_seconds += TraceEntry.from_bytes(line, where).seconds

    with evidence.findings.check("trace root"):
        follow_lines(evidence.run.trace_path, policy, follow).check(evidence.claim.trace)


def _check_tiles(evidence: CheckedRun) -> None:
    """Open the first and the last record, to see that the tiles from which records are opened have this root."""
    log = evidence.claim.transcript
    if evidence.findings.rejected or not evidence.records.are_complete:
        return  # these are not the claimed records; opening one of them would show nothing
    with evidence.findings.check("tiles"):
        for index in sorted({0, log.size - 1}):
            open_line(evidence.run.transcript_path, index, log.size).check(log)


def walk_anchors(
    evidence: CheckedRun, policy: Policy, marks: Collection[int] | None = None
) -> Iterator[tuple[int, State | None]]:
    """Read and check the anchors in order: each one's step and state, or `None` where it is not the recorded one.

    With `marks`, only these are read. Holds one state at a time; whoever keeps the previous one holds two. Raises what
    `findings.check` raises.
    """
    for index in sorted(evidence.anchors if marks is None else evidence.anchors.keys() & set(marks)):
        state: State | None = None  # lets go of the last one before the next is read
        with evidence.findings.check("anchor", f"step {index}"):
            state = _checked_anchor(evidence, index, policy)
        last = evidence.records.last_anchor if evidence.records.are_complete and evidence.ends_as_claimed else None
        is_final = last is not None and index == last.index
        if state is not None and is_final and evidence.claim.weights is not None:
            with evidence.findings.check("weights"):
                is_theirs = state_digest(weights_of(state)) == evidence.claim.weights
                require(is_theirs, "the claim names other weights than those of the final state")
        yield index, state
    if evidence.records.are_complete:
        with evidence.findings.check("final state"):
            require(evidence.ends_as_claimed, "the last anchor is not the final state")


def _checked_anchor(evidence: CheckedRun, index: int, policy: Policy) -> State:
    state, file = evidence.state(index, policy.anchor_bytes_max), Path(evidence.anchors[index].file).name
    count = state.get(POSITION)
    is_count = count is not None and (count.dtype, count.shape) == ("I64", ())
    position = int(count.array().flat[0]) if count is not None and is_count else None
    require(position == index, f"{file} is not the state after step {index}")
    return state

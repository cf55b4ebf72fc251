"""Reads a run directory and checks every digest, root and binding in it; nothing is run.

The transcript is read in one pass, and each anchor once: `walk_anchors` hands every state on while it is in memory.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tallystick.audits.policy import Policy
from tallystick.commitments.digests import Digest, digest_from
from tallystick.commitments.tree import Frontier, leaf_hash
from tallystick.datasets.opened import check_stated_tokenizer, read_tokenizer
from tallystick.datasets.order import BatchPlan
from tallystick.datasets.samples import Dataset
from tallystick.errors import ProofError, UnavailableError
from tallystick.graphs.document import file_root
from tallystick.judging.findings import Findings, require
from tallystick.store.log import open_line, read_lines
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import read_state
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.chain import Chain
from tallystick.transcripts.claim import Claim, Log
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.record import (
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
from tallystick.transcripts.rule import GroupRule
from tallystick.transcripts.spec import Spec
from tallystick.transcripts.summary import StateSummary
from tallystick.workloads.names import BATCH, POSITION
from tallystick.workloads.plan import batch_plan, open_data
from tallystick.workloads.schedule import learning_rate

if TYPE_CHECKING:
    from tallystick.workloads.program import StepProgram

RATE_TOLERANCE = 1e-12


@dataclass
class CheckedRun:
    """A run directory with what was found in it; `findings` says which checks it passed."""

    run: RunDirectory
    claim: Claim
    spec: Spec
    environment: Environment
    findings: Findings = field(default_factory=Findings)
    dataset: Dataset | None = None
    plan: BatchPlan | None = None
    program: StepProgram | None = None
    anchors: dict[int, AnchorRecord] = field(default_factory=dict)
    failures: int = 0
    is_screened: bool = True
    training_seconds: float = 0.0
    _places: array[int] = field(default_factory=lambda: array("Q"))
    _latest: StepRecord | None = None

    @property
    def optimizer(self) -> tuple[GroupRule, ...]:
        """The rules of a loop's optimizer; none where the claim withdraws the step graph, which they belong to."""
        return () if self.claim.no_graph is not None else self.spec.optimizer or ()

    @property
    def steps(self) -> int:
        """The number of step records."""
        return len(self._places)

    @property
    def ends_as_claimed(self) -> bool:
        """Whether the last anchor names the final state of the claim."""
        last = self.anchors.get(max(self.anchors, default=-1))
        return last is not None and last.digest == self.claim.final_state

    def step(self, index: int) -> StepRecord:
        """The record of step `index`, read from its place in the transcript; the latest one is kept.

        Its form was checked in the pass over the transcript. Raises `ProofError` where another record stands there now.
        """
        if self._latest is not None and self._latest.index == index:
            return self._latest
        with self.run.transcript_path.open("rb") as file:
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

    def state(self, anchor: int) -> dict[str, Tensor]:
        """The state of an anchor, read from its file; raises `ProofError` unless its digest is the recorded one."""
        record = self.anchors[anchor]
        state = read_state(self.run.path / record.file, canonical=True)
        if state_digest(state) != record.digest:
            raise ProofError(f"{record.file} does not hold the state its record names")
        return state

    def batch(self, index: int) -> State:
        """The kept batch of step `index` as the graph names it; raises `ProofError` unless it is the recorded one."""
        name = self.step(index).batch.digest
        require(name is not None, f"step {index} does not name the tensors it consumed")
        assert name is not None  # required above
        batch = read_state(self.run.path / batch_file(name), canonical=True)
        require(state_digest(batch) == name, f"{batch_file(name)} does not hold the batch of step {index}")
        return {f"{BATCH}{tensor}": value for tensor, value in batch.items()}

    def rates(self, index: int) -> tuple[float, ...]:
        """The learning rates that step `index` records, one for each parameter group."""
        record = self.step(index)
        groups = len(self.optimizer)
        return record.learning_rates or (record.learning_rate,) * groups

    def require_graph(self, root: Digest) -> None:
        """Raise `ProofError` unless the step graph of this root is the one that the spec names."""
        require(root == self.spec.graph, "graphs/step.json is not the graph that the spec names")

    def add_step(self, place: int) -> None:
        """Remember where in the transcript the next step record starts."""
        self._places.append(place)


def gather_evidence(run: RunDirectory, policy: Policy) -> CheckedRun:
    """Read a run and check all of it, anchors included; what fails is in the findings.

    Raises:
        MalformedError: a file is not what it should be.
        UnavailableError: a file is missing or larger than the policy allows.
    """
    evidence = read_run(run, policy)
    deque(walk_anchors(evidence, policy), maxlen=0)
    return evidence


def read_run(run: RunDirectory, policy: Policy) -> CheckedRun:
    """As `gather_evidence`, without opening the anchors."""
    evidence = CheckedRun(run, run.claim(), run.spec(), run.environment())
    findings, claim = evidence.findings, evidence.claim
    with findings.check("claim"):
        expected = policy.claim
        require(expected in (None, claim.identity), f"the claim is {claim.identity}, not the expected {expected}")
        is_loop = evidence.spec.recipe is None
        require(claim.no_graph is None or is_loop, "the claim excuses a missing step graph, and a recipe needs none")
    with findings.check("spec"):
        require(evidence.spec.identity == claim.spec, "spec.json is not the spec that the claim names")
    with findings.check("environment"):
        found = evidence.environment.digest_as("environment")
        require(found == claim.environment, "environment.json is not the environment that the claim names")
    with findings.check("data"):
        _open_data(evidence)
    if evidence.spec.graph is not None:
        with findings.check("step graph"):
            _open_graph(evidence, policy)
    _read_transcript(evidence, policy)
    _read_trace(evidence, policy)
    _check_tiles(evidence)
    return evidence


def _open_graph(evidence: CheckedRun, policy: Policy) -> None:
    """Read the step graph. Where the recipe is replayed instead, its bytes are compared with the spec and no more."""
    if policy.replay == "recipe" and evidence.spec.recipe is not None:
        evidence.require_graph(file_root(evidence.run.graph_path))
        return
    from tallystick.audits.step_graph import open_step_graph

    evidence.program = open_step_graph(evidence)


def _open_data(evidence: CheckedRun) -> None:
    spec = evidence.spec
    require(evidence.claim.data == spec.data_root, "the claim names another data root than the spec")
    if spec.data is None:
        return
    dataset = open_data(spec, evidence.run.data_path)
    _check_stated_data(evidence)
    evidence.dataset = dataset
    evidence.plan = batch_plan(spec, evidence.dataset)


def _check_stated_data(evidence: CheckedRun) -> None:
    """Compare the kinds of data and tokenizer that are committed to with those of the recipe."""
    recipe, commitment = evidence.spec.recipe, evidence.spec.data
    assert recipe is not None  # only a recipe has data
    assert commitment is not None
    require(commitment.kind == recipe.data.kind, f"the data is {commitment.kind}, the recipe's is {recipe.data.kind}")
    if commitment.tokens is not None:
        tokenizer = read_tokenizer(evidence.run.data_path, commitment)
        check_stated_tokenizer(tokenizer, recipe.tokenizer.kind, recipe.tokenizer.vocabulary)


def _read_transcript(evidence: CheckedRun, policy: Policy) -> None:
    """Check root, order, batches and learning rates in one pass over all records; keeps eight bytes a step."""
    path, chain, frontier, place = evidence.run.transcript_path, Chain(evidence.spec), Frontier.empty(), 0
    broken: ProofError | None = None
    for number, line in enumerate(read_lines(path)):
        if number >= policy.records_max:
            raise UnavailableError(f"transcript.jsonl: more than the {policy.records_max} records allowed")
        frontier = frontier.append(leaf_hash(line))
        record = read_record(line, f"transcript.jsonl: line {number + 1}")
        if broken is None:
            try:
                chain = chain.follow(record)
                _note_record(evidence, record, place)
            except ProofError as error:
                broken = error
        place += len(line) + 1
    with evidence.findings.check("transcript root"):
        _check_log(frontier, evidence.claim.transcript, "transcript.jsonl")
    with evidence.findings.check("record order"):
        if broken is not None:
            raise broken
        chain.finish()


def _note_record(evidence: CheckedRun, record: Record, place: int) -> None:
    if isinstance(record, HeaderRecord):
        require(record.environment == evidence.claim.environment, "the header names another environment")
    elif isinstance(record, AnchorRecord):
        require(record.file == anchor_file(record.index), f"anchor {record.index} names the file {record.file}")
        evidence.anchors[record.index] = record
        _check_hints(evidence, record.summary, f"anchor {record.index}")
    elif isinstance(record, FailedRecord):
        evidence.failures += 1
    else:
        _check_step(evidence, record)
        evidence.add_step(place)
        _check_hints(evidence, record.post, f"step {record.index}")


def _check_hints(evidence: CheckedRun, summary: StateSummary, subject: str) -> None:
    for bucket in (summary.fp16_rne, summary.grid):
        if bucket is not None and bucket.hints is not None:
            with evidence.findings.check("boundary hints", subject):
                evidence.run.read_blob(bucket.hints)


def _check_step(evidence: CheckedRun, record: StepRecord) -> None:
    """Compare what a record holds, its batch and its learning rate with what the spec determines."""
    recipe, plan = evidence.spec.recipe, evidence.plan
    found = record.post.model_dump(exclude_none=True).keys()
    wrong = sorted(found ^ evidence.spec.recorded.summaries_due(record.index))
    require(not wrong, f"step {record.index} lacks a summary that the spec asks for, or has another: {wrong}")
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


def _check_log(frontier: Frontier, log: Log, name: str) -> None:
    require(frontier.size == log.size, f"{name} holds {frontier.size} records, the claim says {log.size}")
    require(digest_from(frontier.root()) == log.root, f"{name} does not have the root that the claim names")


def _read_trace(evidence: CheckedRun, policy: Policy) -> None:
    frontier = Frontier.empty()
    with evidence.findings.check("trace root"):
        for number, line in enumerate(read_lines(evidence.run.trace_path)):
            if number >= policy.records_max:
                raise UnavailableError(f"trace.jsonl: more than the {policy.records_max} entries allowed")
            frontier = frontier.append(leaf_hash(line))
            entry = TraceEntry.from_bytes(line, f"trace.jsonl: line {number + 1}")
            evidence.training_seconds += entry.seconds
        _check_log(frontier, evidence.claim.trace, "trace.jsonl")


def _check_tiles(evidence: CheckedRun) -> None:
    """Open the first and the last record, to see that the tiles from which records are opened have this root."""
    log = evidence.claim.transcript
    if evidence.findings.rejected:
        return  # these are not the claimed records; opening one of them would show nothing
    with evidence.findings.check("tiles"):
        for index in sorted({0, log.size - 1}):
            open_line(evidence.run.transcript_path, index, log.size).check(log)


def walk_anchors(evidence: CheckedRun, policy: Policy) -> Iterator[tuple[int, State | None]]:
    """Read and check the anchors in order: each one's step and state, or `None` where it is not the recorded one.

    Holds one state at a time; whoever keeps the previous one holds two. Sizes are asked first, because they cost
    nothing. Raises what `gather_evidence` raises.
    """
    for record in evidence.anchors.values():
        path = evidence.run.path / record.file
        if path.is_file() and path.stat().st_size > policy.anchor_bytes_max:
            raise UnavailableError(f"{path.name}: larger than the {policy.anchor_bytes_max} bytes allowed")
    for index in sorted(evidence.anchors):
        state: State | None = None  # lets go of the last one before the next is read
        with evidence.findings.check("anchor", f"step {index}"):
            state = _checked_anchor(evidence, index)
        yield index, state
    with evidence.findings.check("final state"):
        require(evidence.ends_as_claimed, "the last anchor is not the final state")


def _checked_anchor(evidence: CheckedRun, index: int) -> State:
    state, file = evidence.state(index), evidence.anchors[index].file.removeprefix("anchors/")
    held = state.get(POSITION)
    is_count = held is not None and (held.dtype, held.shape) == ("I64", ())
    position = int(held.array().flat[0]) if held is not None and is_count else None
    require(position == index, f"{file} is not the state after step {index}")
    return state

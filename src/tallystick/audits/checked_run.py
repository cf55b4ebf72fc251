"""Reads a run directory and rechecks every digest, root and binding in it, without running anything."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tallystick.audits.policy import Policy
from tallystick.commitments.digests import digest_from
from tallystick.commitments.tree import Frontier, leaf_hash
from tallystick.datasets.opened import read_tokenizer
from tallystick.datasets.order import BatchPlan
from tallystick.datasets.samples import Dataset
from tallystick.datasets.verify import check_stated_tokenizer
from tallystick.errors import ProofError, UnavailableError
from tallystick.graphs.files import load_program
from tallystick.graphs.graph import Graph
from tallystick.graphs.root import graph_root
from tallystick.judging.findings import Findings, require
from tallystick.store.log import open_line, read_lines
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import StateFile, read_state
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
from tallystick.workloads.names import BATCH
from tallystick.workloads.optimizer import UpdateRule
from tallystick.workloads.plan import batch_plan, open_data
from tallystick.workloads.program import StepProgram, recipe_program
from tallystick.workloads.schedule import learning_rate

RATE_TOLERANCE = 1e-12


@dataclass
class CheckedRun:
    """A run whose bytes hang together as far as `findings` says."""

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

    @property
    def optimizer(self) -> tuple[GroupRule, ...]:
        """The rules of a loop's optimizer; none where the claim withdraws the step graph beside which they stand."""
        return () if self.claim.no_graph is not None else self.spec.optimizer or ()

    @property
    def steps(self) -> int:
        """The number of step records."""
        return len(self._places)

    def step(self, index: int) -> StepRecord:
        """The record of step `index`, read from its place in the transcript."""
        with self.run.transcript_path.open("rb") as file:
            file.seek(self._places[index - 1])
            record = read_record(file.readline().removesuffix(b"\n"), f"transcript.jsonl: step {index}")
        if not isinstance(record, StepRecord) or record.index != index:
            raise ProofError(f"transcript.jsonl changed while it was audited (step {index})")
        return record

    def state(self, anchor: int) -> dict[str, Tensor]:
        """The state kept in an anchor file; raises `ProofError` unless it is the recorded one."""
        record = self.anchors[anchor]
        with StateFile(self.run.path / record.file, canonical=True) as file:
            state = {name: file.tensor(name).copy() for name in file.names}
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

    def add_step(self, place: int) -> None:
        """Remember where in the transcript the next step record starts."""
        self._places.append(place)


def gather_evidence(run: RunDirectory, policy: Policy) -> CheckedRun:
    """Read a run and recheck all of it; what does not hold is in the evidence's findings.

    Raises:
        MalformedError: a file is not what it should be.
        UnavailableError: a file is missing or larger than the policy allows.
    """
    evidence = CheckedRun(run, run.claim(), run.spec(), run.environment())
    findings, claim = evidence.findings, evidence.claim
    with findings.check("claim"):
        expected = policy.claim
        require(expected in (None, claim.identity), f"the claim is {claim.identity}, not the expected {expected}")
        has_one = evidence.spec.recipe is None and evidence.spec.graph is not None
        require(claim.no_graph is None or has_one, "the claim withdraws the step graph of a loop, and there is none")
    with findings.check("spec"):
        require(evidence.spec.identity == claim.spec, "spec.json is not the spec that the claim names")
    with findings.check("environment"):
        found = evidence.environment.digest_as("environment")
        require(found == claim.environment, "environment.json is not the environment that the claim names")
    with findings.check("data"):
        _open_data(evidence)
    if evidence.spec.graph is not None:
        with findings.check("step graph"):
            _open_graph(evidence)
    _read_transcript(evidence, policy)
    _read_trace(evidence, policy)
    _check_tiles(evidence)
    _check_anchors(evidence, policy)
    return evidence


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
    """What is committed to is of the kinds that the recipe states."""
    recipe, commitment = evidence.spec.recipe, evidence.spec.data
    assert recipe is not None  # only a recipe has data
    assert commitment is not None
    require(commitment.kind == recipe.data.kind, f"the data is {commitment.kind}, the recipe's is {recipe.data.kind}")
    if commitment.tokens is not None:
        tokenizer = read_tokenizer(evidence.run.data_path, commitment)
        check_stated_tokenizer(tokenizer, recipe.tokenizer.kind, recipe.tokenizer.vocabulary)


def _open_graph(evidence: CheckedRun) -> None:
    """Read the step graph through the strict door; raises `MalformedError` for one that no verifier would run."""
    graph, constants = load_program(evidence.run.graph_path)
    require(graph_root(graph) == evidence.spec.graph, "graphs/step.json is not the graph that the spec names")
    if evidence.claim.no_graph is None:
        evidence.program = _program(evidence, graph, constants)


def _program(evidence: CheckedRun, graph: Graph, constants: State) -> StepProgram | None:
    spec = evidence.spec
    if spec.recipe is None:
        rules = tuple(UpdateRule.of_group(group) for group in spec.optimizer or ())
        return StepProgram(graph, constants, rules, evidence.batch, evidence.rates)
    if evidence.dataset is None or evidence.plan is None:
        return None  # the data was rejected already
    return recipe_program(spec.recipe, graph, constants, evidence.dataset, evidence.plan)


def _read_transcript(evidence: CheckedRun, policy: Policy) -> None:
    """One pass over all records: root, order, batches, learning rates. Memory: eight bytes a record."""
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
    """What is recorded of a step, its batch and its learning rate follow from the spec alone."""
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
    """The tiles serve openings; opening the first and the last record shows that they belong to this root."""
    log = evidence.claim.transcript
    if evidence.findings.rejected:
        return  # these are not the claimed records; opening one of them would show nothing
    with evidence.findings.check("tiles"):
        for index in sorted({0, log.size - 1}):
            open_line(evidence.run.transcript_path, index, log.size).check(log)


def _check_anchors(evidence: CheckedRun, policy: Policy) -> None:
    for index in sorted(evidence.anchors):
        with evidence.findings.check("anchor", f"step {index}"):
            path = evidence.run.path / evidence.anchors[index].file
            if path.is_file() and path.stat().st_size > policy.anchor_bytes_max:
                raise UnavailableError(f"{path.name}: larger than the {policy.anchor_bytes_max} bytes allowed")
            require(_position(evidence.state(index)) == index, f"{path.name} is not the state after step {index}")
    with evidence.findings.check("final state"):
        last = evidence.anchors.get(max(evidence.anchors, default=-1))
        require(
            last is not None and last.digest == evidence.claim.final_state,
            "the last anchor is not the final state",
        )


def _position(state: Mapping[str, Tensor]) -> int | None:
    """The number of steps taken, as a state holds it."""
    held = state.get("position.step")
    return int(held.array().flat[0]) if held is not None and (held.dtype, held.shape) == ("I64", ()) else None


def steps_between(evidence: CheckedRun, start: int, end: int) -> Iterator[StepRecord]:
    """The records of steps `start + 1` … `end`."""
    return (evidence.step(index) for index in range(start + 1, end + 1))

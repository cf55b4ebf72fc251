"""Runs and openings as evidence: everything read is checked, and the operators of a step are opened again."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast, overload

from tallystick.audits.calls import Calls, gather_calls
from tallystick.audits.checked_run import CheckedRun, check_records, read_stated, walk_anchors
from tallystick.audits.opened_segment import read_segment
from tallystick.audits.policy import Policy
from tallystick.core.digests import Digest, Hash, LeafHashes, digest_from, leaf_hash, prove_inclusion, tree_root
from tallystick.core.errors import ProofError, UsageError
from tallystick.core.files import write_atomically
from tallystick.core.tensor_digests import GROUP_BYTES, TensorDigest, digest_tensor, tensor_digest
from tallystick.core.tensor_writer import AppendedState
from tallystick.core.tensors import State, Tensor
from tallystick.formats.claims import Log
from tallystick.formats.openings import OpenedOperator, Opening, operator_line
from tallystick.formats.records import OperatorRecord
from tallystick.formats.store.directories import InferenceDirectory, SegmentDirectory
from tallystick.formats.store.log import LogWriter, OpenedLine, open_line
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.encoding import graph_root, prove_node
from tallystick.programs.execution import Arguments, Engine, PlacesArrays, execute
from tallystick.programs.files import ModulePaths, load_modules, save_program
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.step_names import BATCH
from tallystick.verdicts.opening.files import GRAPH, NAME_BYTES, OPENING, OPERATOR, OPERATORS, VALUES, value_name
from tallystick.verdicts.verdict import Findings

if TYPE_CHECKING:
    from tallystick.engines.torch.training.verifier_stack import GraphReplayer


# Reads and checks a run without an audit: for whoever inspects it, or argues about it.


def gather_evidence(run: RunDirectory, policy: Policy, findings: Findings | None = None) -> CheckedRun:
    """Read a run and check all of it, anchors included; what fails is in the findings.

    Raises (with `findings.keeps_going`, leaves open instead):
        MalformedError: a file has no form that is known here.
        UnavailableError: a file is missing or larger than the policy allows.
    """
    evidence = read_run(run, policy, findings)
    deque(walk_anchors(evidence, policy), maxlen=0)
    return evidence


def read_run(run: RunDirectory, policy: Policy, findings: Findings | None = None) -> CheckedRun:
    """As `gather_evidence`, without opening the anchors; raises `ProofError` where nothing can be read."""
    findings = Findings() if findings is None else findings
    stated = read_stated(run, policy, findings)
    if stated is None:
        objections = [finding.detail for finding in findings.seen if not finding.agrees]
        raise ProofError((objections + findings.open_lines)[0])
    return check_records(stated, policy)


# Read a folder as evidence: every digest in it is rechecked, or `ProofError` is raised.


@overload
def gather_whole(folder: RunDirectory) -> CheckedRun: ...
@overload
def gather_whole(folder: InferenceDirectory) -> Calls: ...
def gather_whole(folder: RunDirectory | InferenceDirectory) -> CheckedRun | Calls:
    """All of a training run or of recorded calls; raises `ProofError` with the first check that fails.

    The weights, inputs and outputs of calls are read later, on first use.
    """
    if isinstance(folder, InferenceDirectory):
        calls = gather_calls(folder, Policy())
        require_agreement(str(folder.path), calls.findings)
        return calls
    evidence = gather_records(folder)
    check_anchors(evidence)
    return evidence


def gather_records(run: RunDirectory) -> CheckedRun:
    """As `gather_whole`, but without the anchors: each anchor is rechecked when its state is read."""
    evidence = read_run(run, Policy())
    require_agreement(str(run.path), evidence.findings)
    return evidence


def gather_segment(segment: SegmentDirectory) -> CheckedRun:
    """As `gather_records`, of a segment that was handed over alone."""
    findings = Findings()
    evidence = read_segment(segment, Policy(), findings)
    require_agreement(str(segment.path), findings)
    assert evidence is not None  # what cannot be read is raised, or among the findings
    return evidence


def check_anchors(evidence: CheckedRun) -> None:
    """Read every anchor; raise `ProofError` for the first that is not the recorded one, or not the final state."""
    deque(walk_anchors(evidence, Policy()), maxlen=0)
    require_agreement(str(evidence.run.path), evidence.findings)


def require_agreement(path: str, findings: Findings) -> None:
    """Raise `ProofError` with the first finding that disagrees."""
    bad = next((finding for finding in findings.seen if not finding.agrees), None)
    if bad is not None:
        raise ProofError(f"{path}: {bad.name}: {bad.detail}")


# The source of an opening: a record with its proof, the graph of its step, and everything that the step read.
#
# A step of a training is reached by a replay from the anchor before it. A call of a model needs only its own inputs.

THREADS_MAX: Final = 256
MakeReplayer = Callable[[CheckedRun], "GraphReplayer"]


def graph_replayer(evidence: CheckedRun, device: str = "cpu") -> GraphReplayer:
    """A replayer of the run's step graph on this machine, with as many threads as the run states.

    Raises `UsageError` if the run has no step graph, `UnavailableError` if the device is not there.
    """
    import torch

    from tallystick.engines.torch.training.verifier_stack import GraphReplayer

    if evidence.program is None:
        raise UsageError(f"{evidence.run.path}: the run has no step graph; its steps have no operators to open")
    torch.set_num_threads(min(evidence.environment.threads, THREADS_MAX))
    return GraphReplayer(evidence.spec, evidence.program, device)


def source_of_step(evidence: CheckedRun, step: int, make: MakeReplayer = graph_replayer) -> OpeningSource:
    """Step `step` of a training, after a replay from the anchor before it.

    Raises `UsageError` if the run has no such step or no step graph, and whatever a replay raises.
    """
    log = evidence.claim.transcript
    place = evidence.run.place_of_step(step, log.size)
    replayer = make(evidence)
    replay_to(evidence, replayer, step - 1)
    assert evidence.program is not None  # checked by `make`
    record = open_line(evidence.run.transcript_path, place, log.size)
    graph, bindings = evidence.program.at(step).graph, replayer.bindings(step)
    modules = load_modules(evidence.run.graph_path_of(evidence.step(step)), graph).paths
    return OpeningSource(evidence.claim.identity, log, record, graph, bindings, replayer.carried, modules)


def replay_to(evidence: CheckedRun, replayer: GraphReplayer, step: int) -> int:
    """Bring a replayer to the state after `step`, from the last anchor up to there; returns that anchor."""
    start = max(anchor for anchor in evidence.anchors if anchor <= step)
    replayer.restore(evidence.state(start))
    for index in range(start + 1, step + 1):
        replayer.step(index)
    return start


def out_of_reach(evidence: CheckedRun, step: int) -> str:
    """Why no replay reaches a step: it, or one between it and the anchor before it, has no step graph; else empty."""
    start = max(anchor for anchor in evidence.anchors if anchor < step)
    for record in map(evidence.step, range(start + 1, step + 1)) if evidence.varies else ():
        if (why := record.no_graph or evidence.claim.why_withdrawn(record.index)) is not None:
            return f"step {record.index} has no step graph: {why}"
    return ""


def source_of_call(calls: Calls, number: int) -> OpeningSource:
    """Call `number` of a model, counted from 1; raises `UsageError` if there is no such call."""
    if not 1 <= number <= len(calls.records):
        raise UsageError(f"--step {number}: {len(calls.records)} calls were recorded")
    inputs = {f"{BATCH}{name}": tensor for name, tensor in calls.inputs(calls.records[number - 1]).items()}
    weights, digests = calls.digested_weights()
    bindings = {**calls.constants, **weights, **inputs}
    log = calls.claim.transcript
    record = open_line(calls.run.transcript_path, number - 1, log.size)
    modules = load_modules(calls.run.graph_path, calls.graph).paths
    known = dict(digests.entries)
    return OpeningSource(calls.claim.identity, log, record, calls.graph, bindings, modules=modules, digests=known)


# Digests every value of an execution, and writes those that are wanted into one file.
#
# Digests take longer than many operators. So other threads compute them, and write, while the engine goes on. Values
# lie in the file in the order in which they were given, whichever digest is ready first. A value that is a view of the
# bytes of another one, such as its transpose's transpose, is not hashed again.

BATCH_BYTES: Final = 4 << 20
BATCH_MAX: Final = 256
"""Values of so many bytes, or so many values, are handed to another thread at once: it takes time to wake one."""
WAITING_BYTES_MAX: Final = 32 << 20
"""The bytes of values that wait for their digests, or to be written; the engine waits where there are more.

More would keep the engine from taking the same memory again, and new memory has to be cleared first.
"""


@dataclass(frozen=True)
class _Noted:
    """A value, and the hashes of its chunks once they are computed: here, or where the same bytes were noted before."""

    ref: Ref
    tensor: Tensor
    chunks: list[Hash]
    is_new: bool

    def hash(self) -> None:
        if self.is_new:
            is_large = self.tensor.nbytes > GROUP_BYTES
            self.chunks.extend(digest_tensor(self.tensor, None if is_large else 1).chunks)

    def name(self) -> Digest:
        return TensorDigest(self.tensor.dtype, self.tensor.shape, tuple(self.chunks)).digest


class ValueNoting:
    """Watches an execution: `digests` are those of all values, and `file` receives those that are `wanted`, once each.

    A context manager. Everything is digested and written when its block ends.
    """

    def __init__(self, engine: Engine, file: AppendedState | None, wanted: Collection[Ref]) -> None:
        self.digests: dict[Ref, Digest] = {}
        self._engine, self._file, self._wanted = engine, file, frozenset(wanted)
        self._placing = engine if isinstance(engine, PlacesArrays) else None
        self._placed: dict[tuple[int, int], tuple[weakref.ref[Any], list[Hash]]] = {}
        self._sources: dict[Ref, tuple[int, list[Hash]]] = {}
        self._hashing = ThreadPoolExecutor(os.cpu_count(), "digests")
        self._writing = ThreadPoolExecutor(1, "values")
        self._batch: list[_Noted] = []
        self._batch_bytes = self._bytes = 0
        self._waiting: deque[tuple[int, Future[None]]] = deque()

    def __call__(self, node: Node, arguments: Arguments, results: tuple[Any, ...]) -> None:
        """Note the results of a node: what `execute` calls."""
        if self._sources:
            self._place_sources(node, arguments)
        for ref, spec, array in zip(node.outputs, node.results, results, strict=True):
            if ref is not None and spec is not None:
                tensor, own = self._engine.unload(array, spec.dtype), list[Hash]()
                chunks = self._at(array, tensor.nbytes, own)
                self._add(_Noted(ref, tensor, chunks, is_new=chunks is own))

    def note(self, ref: Ref, tensor: Tensor, known: TensorDigest | None = None) -> None:
        """Note an input of the execution, whose bytes nothing changes any more, with its digest if that is known."""
        noted = _Noted(ref, tensor, list(known.chunks if known else ()), is_new=known is None)
        self._sources[ref] = tensor.nbytes, noted.chunks
        self._add(noted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._hand_over()
                while self._waiting:
                    self._wait_for_first()
        finally:
            self._hashing.shutdown(cancel_futures=True)
            self._writing.shutdown(cancel_futures=True)

    def _place_sources(self, node: Node, arguments: Arguments) -> None:
        """Where the engine put the inputs that a node reads: some results are views of them."""
        for name, operand in node.operands.items():
            if isinstance(operand, str) and operand in self._sources:
                self._at(arguments[name], *self._sources.pop(operand))

    def _at(self, array: Any, size: int, own: list[Hash]) -> list[Hash]:
        """The hashes of the bytes of an array: those of an earlier value if they are the same bytes, else its `own`."""
        address = self._placing.place(array) if self._placing is not None else None
        if not address:
            return own
        earlier = self._placed.get((address, size))
        if earlier is not None and earlier[0]() is not None:  # an array that is still held has moved nowhere
            return earlier[1]
        self._placed[address, size] = (weakref.ref(array), own)
        return own

    def _add(self, noted: _Noted) -> None:
        self._batch.append(noted)
        self._batch_bytes += noted.tensor.nbytes
        if self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_MAX:
            self._hand_over()
            while self._bytes > WAITING_BYTES_MAX and len(self._waiting) > 1:
                self._wait_for_first()

    def _hand_over(self) -> None:
        batch, size, self._batch, self._batch_bytes = self._batch, self._batch_bytes, [], 0
        hashed = self._hashing.submit(_hash_all, batch)
        self._waiting.append((size, self._writing.submit(self._finish, batch, hashed)))
        self._bytes += size

    def _wait_for_first(self) -> None:
        size, finished = self._waiting.popleft()
        self._bytes -= size
        finished.result()

    def _finish(self, batch: Sequence[_Noted], hashed: Future[None]) -> None:
        """Name the values of a batch and write them; batches are finished in their order."""
        hashed.result()
        for noted in batch:
            self.digests[noted.ref] = digest = noted.name()
            if self._file is not None and noted.ref in self._wanted and value_name(digest) not in self._file:
                self._file.append(value_name(digest), noted.tensor)


def _hash_all(batch: Sequence[_Noted]) -> None:
    for noted in batch:
        noted.hash()


# Opens the operators of one step or call: runs its graph again and saves every value under its digest.
#
# A normal run hashes only the states before and after a step. To hash every operator's results costs several times a
# forward pass, so it is done on request.


@dataclass(frozen=True)
class OpeningSource:
    """What is opened: a record of a claimed transcript, its graph, and all inputs of the graph.

    `digests` are those of inputs that were digested when they were read. `rest` holds the tensors of the state that the
    graph neither reads nor writes; `modules` are the module paths of the graph's nodes, to be kept beside it.
    """

    claim: Digest
    transcript: Log
    record: OpenedLine
    graph: Graph
    bindings: Mapping[Ref, Tensor]
    rest: State = field(default_factory=dict)
    modules: ModulePaths = field(default_factory=dict)
    digests: Mapping[Ref, TensorDigest] = field(default_factory=dict)


def open_operators(
    subject: OpeningSource, out: Path, engine: Engine, node: int | None = None, with_tensors: bool = True
) -> Opening:
    """Write all operators of `subject` into `out`, or one with its proofs, and their values.

    Raises:
        UsageError: `out` is not empty, or the graph has no such node.
        UnavailableError: a kernel refuses its operands, or the disk cannot be written.
    """
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another directory")
    graph = subject.graph
    position = 0 if node is None else _position(graph, node)
    sources = {entry.name: subject.bindings[entry.name] for entry in graph.sources}
    results, digests = _noted(subject, sources, out, engine, _kept(graph, node) if with_tensors else frozenset())
    lines = [operator_line(entry, digests, digests) for entry in graph.nodes]
    log = _write_records(out, lines) if node is None else _log_of(lines)
    opening = _opening(subject, sources, results, digests, log, engine.name)
    write_atomically(out / OPENING, opening.to_bytes())
    if node is None:
        save_program(out / GRAPH, graph, subject.bindings, subject.modules)
    else:
        write_atomically(out / OPERATOR, _one(graph, lines, position).to_bytes())
    return opening


def _noted(
    subject: OpeningSource, sources: State, out: Path, engine: Engine, wanted: Collection[Ref]
) -> tuple[State, Mapping[Ref, Digest]]:
    """The results of the graph by name, and the digest of every value; writes the `wanted` values into `out`."""
    specs = subject.graph.specs()
    out.mkdir(parents=True, exist_ok=True)
    values = AppendedState(out / VALUES, [specs[ref] for ref in wanted], NAME_BYTES) if wanted else nullcontext()
    with values as file, ValueNoting(engine, file, wanted) as noting:
        for name, tensor in sources.items():
            noting.note(name, tensor, subject.digests.get(name))
        results = execute(subject.graph, subject.bindings, engine, noting)
    return results, noting.digests


def _kept(graph: Graph, node: int | None) -> frozenset[Ref]:
    """Every value of the graph, or those of one node."""
    if node is None:
        return frozenset(graph.specs())
    chosen = graph.nodes[_position(graph, node)]
    return frozenset((*chosen.refs, *filter(None, chosen.outputs)))


def _position(graph: Graph, number: int) -> int:
    for position, node in enumerate(graph.nodes):
        if node.number == number:
            return position
    raise UsageError(f"the graph has no node {number}")


def _write_records(out: Path, lines: Sequence[bytes]) -> Log:
    writer = LogWriter(out / OPERATORS)
    try:
        writer.extend(lines)
    finally:
        log = writer.close()
    return log


def _log_of(lines: Iterable[bytes]) -> Log:
    leaves = list(map(leaf_hash, lines))
    return Log(root=digest_from(tree_root(leaves)), size=len(leaves))


def _one(graph: Graph, lines: Sequence[bytes], position: int) -> OpenedOperator:
    proof = prove_inclusion(LeafHashes(list(map(leaf_hash, lines))), position, len(lines))
    node = cast("dict[str, Any]", prove_node(graph, graph.nodes[position].number).to_json())
    record = OperatorRecord.from_bytes(lines[position], f"operator {position}")
    return OpenedOperator(node=node, index=position, record=record, proof=tuple(step.hex() for step in proof))


def _opening(
    subject: OpeningSource, sources: State, results: State, digests: Mapping[Ref, Digest], log: Log, engine: str
) -> Opening:
    values = {output.name: output.value for output in subject.graph.outputs}
    rest = {name: tensor_digest(tensor) for name, tensor in subject.rest.items()}
    return Opening(
        claim=subject.claim,
        transcript=subject.transcript,
        index=subject.record.index,
        record=subject.record.line.decode(),
        proof=tuple(step.hex() for step in subject.record.proof),
        graph=graph_root(subject.graph),
        operators=log,
        sources={name: digests[name] for name in sources},
        results={name: digests[values[name]] for name in results},
        rest_before=rest,
        rest_after=rest,
        engine=None if engine == "torch" else engine,
    )

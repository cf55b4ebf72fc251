"""Reads what a prover opened of one step or call, checks that it hangs together, and judges its operators.

Nothing is executed but the reference in NumPy; a value that was not opened leaves its operator unjudged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from tallystick.commitments.digests import Digest, digest_from
from tallystick.commitments.tree import Frontier, leaf_hash
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.graphs.files import load_program
from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.graphs.root import NodeProof, check_node, graph_root
from tallystick.judging.findings import DIFFERS, Findings, require
from tallystick.judging.operator_judge import OperatorJudge
from tallystick.judging.properties import judge_properties
from tallystick.judging.published import Published
from tallystick.judging.verdict import Verdict
from tallystick.operators.precision import UNSTATED, Precision
from tallystick.store.log import read_lines
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.safetensors import StateFile
from tallystick.tensors.single import VALUE, read_single
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.opening import OpenedOperator, Opening, state_digest_of
from tallystick.transcripts.operator_line import given_in
from tallystick.transcripts.profile import Profile
from tallystick.transcripts.record import CallRecord, OperatorRecord, StepRecord
from tallystick.workloads.program import BATCH, STATE_PREFIXES
from tallystick.workloads.replayer import POSITION

OPENING: Final = "opening.json"
OPERATORS: Final = "operators.jsonl"
OPERATOR: Final = "operator.json"
GRAPH: Final = "graph.json"
VALUES: Final = "tensors"
OPERATORS_MAX: Final = 1 << 20


Opened: TypeAlias = "tuple[Graph | None, tuple[Node, ...], Mapping[Ref, Digest]]"
"""The graph where all of it is opened, its opened nodes, and the digests of their values."""


@dataclass(frozen=True)
class Judgement:
    """What a verifier asks of opened operators.

    `claim` is the digest of the claim that was published, `published` the claim itself, which says more.
    """

    precision: Precision = UNSTATED
    profile: Profile | None = None
    nodes: frozenset[int] = frozenset()
    properties: tuple[str, ...] = ()
    claim: Digest | None = None
    published: Published | None = None


def judge_opening(folder: Path, asked: Judgement) -> Verdict:
    """Judge every opened operator in `folder`, or those that are asked for.

    Raises:
        MalformedError: a file is not what it should be.
        UnavailableError: a file is missing.
        UsageError: a node or a property that does not exist is asked for.
    """
    opening = Opening.from_bytes(read_document(folder / OPENING), OPENING)
    notes = Findings()
    with notes.check("opened record"):
        check_binding(opening)
    with notes.check("claim"):
        require(asked.claim in (None, opening.claim), f"the opening belongs to the claim {opening.claim}")
    if asked.published is not None:
        asked.published.check(notes, opening)
    read = _whole if (folder / OPERATORS).exists() else _single
    graph, nodes, digests = read(notes, folder, opening)
    if notes.rejected:
        return Verdict(tuple(notes.seen), not_checked=("the operators: the opening does not hang together",))
    if asked.published is not None:
        with notes.check("value"):
            asked.published.check_step(notes, opening, opening.opened_record(), lambda names: _loaded(folder, names))
    unavailable = list(_judge_nodes(notes, folder, asked, opening, nodes, digests))
    if asked.properties:
        unavailable += _judge_properties(notes, folder, asked, graph, digests)
    return Verdict(
        tuple(notes.seen),
        tuple(unavailable),
        tuple(_not_checked(folder, opening, asked, nodes)),
        tuple(_assumed(asked)),
    )


def check_binding(opening: Opening, bits: bool = True) -> None:
    """Raise `ProofError` unless the record stands in its transcript, and sources and results are what it says.

    Without `bits`, states and outputs may be others than those whose digests the record names: an honest replay on
    another stack gives other bits, and who disputes one operator has compared them within limits already.
    """
    record = opening.opened_record()
    if isinstance(record, CallRecord):
        _check_call(opening, record, bits)
        return
    check_position(opening, record.index)
    if bits:
        _check_states(opening, record)
    batch = {name.removeprefix(BATCH): found for name, found in opening.sources.items() if name.startswith(BATCH)}
    if record.batch.digest is not None:
        require(
            state_digest_of(batch) == record.batch.digest, f"the operators read another batch than step {record.index}"
        )


def _check_states(opening: Opening, record: StepRecord) -> None:
    before, after = states_around(opening)
    require(record.pre.exact in (None, before), f"the operators do not start from the state before step {record.index}")
    require(record.post.exact in (None, after), f"the operators do not end in the state after step {record.index}")


def value_file(name: Digest) -> str:
    """The path inside an opening of the value with this tensor digest."""
    return f"{VALUES}/{name.removeprefix('sha256:')}.safetensors"


def check_position(opening: Opening, step: int) -> None:
    """Raise `ProofError` unless the operators lead from the state before `step` to the one after it."""
    before, after = (tensor_digest(Tensor.of(np.asarray(count, np.int64))) for count in (step - 1, step))
    found = opening.sources.get(POSITION), opening.results.get(POSITION)
    require(found == (before, after), f"the operators are not those of step {step}")


def states_around(opening: Opening) -> tuple[Digest, Digest]:
    """The state digests before and after the opened step."""
    before = {name: found for name, found in opening.sources.items() if name.startswith(STATE_PREFIXES)}
    after = {name: found for name, found in opening.results.items() if name.startswith(STATE_PREFIXES)}
    return state_digest_of(before | opening.rest_before), state_digest_of(after | opening.rest_after)


def _check_call(opening: Opening, record: CallRecord, bits: bool) -> None:
    given = {name.removeprefix(BATCH): found for name, found in opening.sources.items() if name.startswith(BATCH)}
    require(state_digest_of(given) == record.inputs, f"the operators read other inputs than call {record.index}")
    same = not bits or state_digest_of(opening.results) == record.outputs
    require(same, f"the operators give other outputs than call {record.index}")


def _whole(notes: Findings, folder: Path, opening: Opening) -> Opened:
    graph, _ = load_program(folder / GRAPH)
    with notes.check("graph"):
        require(graph_root(graph) == opening.graph, "graph.json is not the graph that the opening names")
    lines = _read_lines(notes, folder, opening)
    digests: dict[Ref, Digest] = dict(opening.sources)
    with notes.check("operators"):
        digests = follow_operators(opening, graph, lines)
    return graph, graph.nodes, digests


def follow_operators(opening: Opening, graph: Graph, lines: Collection[bytes]) -> dict[Ref, Digest]:
    """The digest of every value, from the sources of the opening through all records to its results.

    Raises `ProofError` where they do not follow from one another, `MalformedError` where a line is no record.
    """
    digests: dict[Ref, Digest] = dict(opening.sources)
    try:
        _check_sources(graph, opening)
        _follow(graph, lines, digests)
        _check_results(graph, opening, digests)
    except ProofError:
        for number, line in enumerate(lines, 1):  # one that is no record at all is named first
            _read_record(line, number)
        raise
    return digests


def _read_lines(notes: Findings, folder: Path, opening: Opening) -> list[bytes]:
    frontier, lines = Frontier.empty(), list[bytes]()
    for line in read_lines(folder / OPERATORS):
        if len(lines) >= OPERATORS_MAX:
            raise UnavailableError(f"{OPERATORS}: more than the {OPERATORS_MAX} records allowed")
        frontier = frontier.append(leaf_hash(line))
        lines.append(line)
    with notes.check("operators root"):
        found = (frontier.size, digest_from(frontier.root()))
        require(found == (opening.operators.size, opening.operators.root), f"{OPERATORS} is not what the opening names")
    return lines


def _check_sources(graph: Graph, opening: Opening) -> None:
    names = {each.name for each in graph.inputs} | {each.name for each in graph.constants}
    require(names == opening.sources.keys(), "the opening names other inputs than the graph has")
    for each in graph.constants:
        require(opening.sources[each.name] == each.digest, f"constant {each.name} is not the graph's")


def _follow(graph: Graph, lines: Collection[bytes], digests: dict[Ref, Digest]) -> None:
    """Every record belongs to its node, and what one operator gives is what the next one reads."""
    require(len(lines) == len(graph.nodes), f"{len(lines)} operators, and the graph has {len(graph.nodes)}")
    for number, (node, line) in enumerate(zip(graph.nodes, lines, strict=True), 1):
        given = given_in(line, node, digests)
        digests |= _checked(node, _read_record(line, number), digests) if given is None else given


def _read_record(line: bytes, number: int) -> OperatorRecord:
    return OperatorRecord.from_bytes(line, f"{OPERATORS}: line {number}")


def _checked(node: Node, record: OperatorRecord, digests: Mapping[Ref, Digest]) -> Mapping[Ref, Digest]:
    """What a record names, field by field: says what is wrong with it."""
    check_operator(node, record)
    for ref, found in record.inputs.items():
        require(digests.get(ref) == found, f"node {node.number} reads another {ref} than was given")
    return record.outputs


def check_operator(node: Node, record: OperatorRecord) -> None:
    """Raise `ProofError` unless `record` is about exactly the values of `node`."""
    require(
        (record.node, record.operator) == (node.number, node.operator), f"node {node.number} is not the one recorded"
    )
    require(record.inputs.keys() == set(node.refs), f"node {node.number} reads other values than its record names")
    given = {ref for ref in node.outputs if ref is not None}
    require(record.outputs.keys() == given, f"node {node.number} gives other values than its record names")


def _check_results(graph: Graph, opening: Opening, digests: Mapping[Ref, Digest]) -> None:
    found = {output.name: digests[output.value] for output in graph.outputs}
    require(found == opening.results, "the opening names other results than the operators give")


def _single(notes: Findings, folder: Path, opening: Opening) -> Opened:
    opened = OpenedOperator.from_bytes(read_document(folder / OPERATOR), OPERATOR)
    nodes: tuple[Node, ...] = ()
    with notes.check("operator"):
        opened.check_record(opening)
        node = check_node(NodeProof.from_json(opened.node), opening.graph)
        check_operator(node, opened.record)
        nodes = (node,)
    return None, nodes, {**opened.record.inputs, **opened.record.outputs}


def _judge_nodes(
    notes: Findings,
    folder: Path,
    asked: Judgement,
    opening: Opening,
    nodes: Iterable[Node],
    digests: Mapping[Ref, Digest],
) -> Iterator[str]:
    judge = OperatorJudge(opening.graph, asked.precision, asked.profile, engine=opening.engine)
    known = {node.number: node for node in nodes}
    unknown = sorted(asked.nodes - known.keys())
    if unknown:
        raise UsageError(f"node {unknown[0]} is not opened here")
    for node in (known[number] for number in sorted(asked.nodes or known)):
        values = {ref: digests[ref] for ref in (*node.refs, *filter(None, node.outputs))}
        try:
            tensors = _loaded(folder, values)
        except ProofError as error:
            notes.note(DIFFERS, "value", f"node {node.number}", str(error))
            continue
        if line := judge.judge(notes, node, tensors):
            yield line


def _loaded(folder: Path, wanted: Mapping[Ref, Digest]) -> dict[Ref, Tensor]:
    """The opened ones among the wanted values, each checked against its digest."""
    found: dict[Ref, Tensor] = {}
    for ref, name in wanted.items():
        path = folder / value_file(name)
        if path.is_file():
            found[ref] = read_value(path, name)
    return found


def read_value(path: Path, name: Digest, spec: TensorSpec | None = None) -> Tensor:
    """An opened value; raises `ProofError` unless it has the digest `name`.

    It may have any spec, and is read faster where it has the expected one.
    """
    tensor = None if spec is None else read_single(path, spec)
    if tensor is None:
        tensor = _read_any(path)
    if tensor_digest(tensor) != name:
        raise ProofError(f"{path.name} does not hold the bytes it is named after")
    return tensor


def _read_any(path: Path) -> Tensor:
    with StateFile(path, canonical=True) as file:
        if list(file.names) != [VALUE]:
            raise MalformedError(f"{path.name}: holds something else than one value")
        return file.tensor(VALUE).copy()


def _judge_properties(
    notes: Findings, folder: Path, asked: Judgement, graph: Graph | None, digests: Mapping[Ref, Digest]
) -> list[str]:
    if graph is None:
        return ["properties: they are checked of a whole opening, and one operator is opened here"]
    return list(judge_properties(notes, graph, _loaded(folder, digests), asked.properties))


def _not_checked(folder: Path, opening: Opening, asked: Judgement, nodes: Collection[Node]) -> Iterator[str]:
    record = opening.opened_record()
    if asked.published is not None:
        yield from asked.published.not_checked(opening, record, lambda name: (folder / value_file(name)).is_file())
    elif isinstance(record, StepRecord):
        yield "whether loss and learning rate are those of the record: `tally audit` replays the step"
    if isinstance(record, StepRecord):
        if record.batch.digest is None:
            yield f"whether this is the batch of step {record.index}: its record names positions, and not tensors"
        if record.pre.exact is None or record.post.exact is None:
            yield f"whether these are the states around step {record.index}: its record has no exact summary of both"
    if asked.nodes and len(asked.nodes) < len(nodes):
        yield f"{len(nodes) - len(asked.nodes)} of {len(nodes)} operators were not judged"
    if opening.engine is not None:
        yield f"whether {opening.engine} computed the operators: the opening says so"
    if asked.published is None:
        yield "whether transcript and graph are those of the claim that was published: only the claim itself says so"


def _assumed(asked: Judgement) -> Iterator[str]:
    yield "SHA-256 is collision resistant, and NumPy computes what it says"
    if asked.profile is not None:
        yield "honest stacks differ by no more than those the profile was calibrated on"

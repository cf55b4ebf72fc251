"""Opens the operators of one step or call: runs its graph again and saves every value under its digest.

A normal run hashes only the states before and after a step. To hash every operator's results costs several times a
forward pass, so it is done on request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tallystick.commitments.digests import Digest, digest_from
from tallystick.commitments.proofs import LeafHashes, prove_inclusion
from tallystick.commitments.tree import leaf_hash, tree_root
from tallystick.documents.files import write_atomically
from tallystick.errors import UsageError
from tallystick.graphs.engine import Engine
from tallystick.graphs.execution import execute
from tallystick.graphs.files import save_program
from tallystick.graphs.graph import Graph, Ref
from tallystick.graphs.modules import ModulePaths
from tallystick.graphs.root import graph_root, prove_node
from tallystick.judging.opening.files import GRAPH, OPENING, OPERATOR, OPERATORS
from tallystick.judging.opening.values import NAME_BYTES, VALUES
from tallystick.judging.operator_line import operator_line
from tallystick.recorders.value_noting import ValueNoting
from tallystick.store.log import OpenedLine
from tallystick.store.log_writer import LogWriter
from tallystick.tensors.appending import AppendedState
from tallystick.tensors.digest import TensorDigest, tensor_digest
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.claim import Log
from tallystick.transcripts.opening import OpenedOperator, Opening
from tallystick.transcripts.record import OperatorRecord


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
    sources = {each.name: subject.bindings[each.name] for each in graph.sources}
    results, digests = _noted(subject, sources, out, engine, _kept(graph, node) if with_tensors else frozenset())
    lines = [operator_line(each, digests, digests) for each in graph.nodes]
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

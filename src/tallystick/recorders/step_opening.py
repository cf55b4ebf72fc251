"""Opens the operators of one step or call: runs its graph again and saves every value by its digest.

A normal run hashes only the states before and after a step. To hash every operator's results costs several times a
forward pass, so it is done on request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from tallystick.commitments.digests import Digest, digest_from
from tallystick.commitments.proofs import LeafHashes, prove_inclusion
from tallystick.commitments.tree import leaf_hash, tree_root
from tallystick.documents.files import write_atomically
from tallystick.errors import UsageError
from tallystick.graphs.engine import Arguments, Engine
from tallystick.graphs.execution import execute
from tallystick.graphs.files import save_program
from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.graphs.modules import ModulePaths
from tallystick.graphs.root import graph_root, prove_node
from tallystick.judging.operator_line import operator_line
from tallystick.store.log import OpenedLine
from tallystick.store.log_writer import LogWriter
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.single import write_single
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.claim import Log
from tallystick.transcripts.opening import OpenedOperator, Opening
from tallystick.transcripts.record import OperatorRecord

VALUES: Final = "tensors"


@dataclass(frozen=True)
class OpeningSource:
    """What is opened: a record of a claimed transcript, its graph, and all inputs of the graph.

    `rest` holds the tensors of the state that the graph neither reads nor writes; `modules` are the module paths of
    the graph's nodes, to be kept beside it.
    """

    claim: Digest
    transcript: Log
    record: OpenedLine
    graph: Graph
    bindings: Mapping[Ref, Tensor]
    rest: State = field(default_factory=dict)
    modules: ModulePaths = field(default_factory=dict)


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
    noting = _Noting(out / VALUES, engine, frozenset() if not with_tensors else _kept(graph, node))
    if with_tensors:
        noting.values.mkdir(parents=True, exist_ok=True)
    names = [each.name for each in graph.inputs] + [each.name for each in graph.constants]
    sources = {name: subject.bindings[name] for name in names}
    for name, tensor in sources.items():
        noting.keep(name, tensor)
    results = execute(graph, subject.bindings, engine, noting)
    log = _write_records(out, noting.lines) if node is None else _log_of(noting.lines)
    opening = _opening(subject, sources, results, noting.digests, log, engine.name)
    write_atomically(out / "opening.json", opening.to_bytes())
    if node is None:
        save_program(out / "graph.json", graph, subject.bindings, subject.modules)
    else:
        write_atomically(out / "operator.json", _one(graph, noting.lines, position).to_bytes())
    return opening


@dataclass
class _Noting:
    """Watches an execution: digests every result, and saves those in `wanted`."""

    values: Path
    engine: Engine
    wanted: frozenset[Ref]
    digests: dict[Ref, Digest] = field(default_factory=dict)
    lines: list[bytes] = field(default_factory=list)
    _written: set[Digest] = field(default_factory=set)

    def __call__(self, node: Node, _arguments: Arguments, results: tuple[Any, ...]) -> None:
        for ref, spec, array in zip(node.outputs, node.results, results, strict=True):
            if ref is not None and spec is not None:
                self.keep(ref, self.engine.unload(array, spec.dtype))
        self.lines.append(operator_line(node, self.digests, self.digests))

    def keep(self, ref: Ref, tensor: Tensor) -> None:
        name = tensor_digest(tensor)
        self.digests[ref] = name
        if ref in self.wanted and name not in self._written:
            self._written.add(name)
            write_single(self.values / f"{name.removeprefix('sha256:')}.safetensors", tensor)


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


def _write_records(out: Path, lines: Iterable[bytes]) -> Log:
    writer = LogWriter(out / "operators.jsonl")
    try:
        for line in lines:
            writer.append(line)
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

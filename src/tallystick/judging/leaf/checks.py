"""Checks that the pieces of a leaf bundle are consistent, before a referee compares any number.

Each leaf is checked alone. Leaf p checks that the record at position p is about node p of the graph. So the records of
producers need no proof about the graph here: their own leaves check that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tallystick.commitments.digests import Digest
from tallystick.commitments.encoding import encode
from tallystick.commitments.proofs import check_inclusion
from tallystick.commitments.tree import Hash, leaf_hash
from tallystick.errors import MalformedError, ProofError
from tallystick.graphs.check import parse_ref
from tallystick.graphs.encoding import graph_from_json
from tallystick.graphs.graph import Graph, Node
from tallystick.graphs.root import NodeProof, check_node
from tallystick.judging.findings import Findings, require
from tallystick.judging.leaf.bundle import Edge, LeafBundle
from tallystick.judging.opening.binding import check_binding, check_operator
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.opening import check_leaf

if TYPE_CHECKING:
    from tallystick.judging.published import Published

HEADER_FIELDS = {"constants", "dialect", "form", "graph", "inputs", "outputs"}


def check_bundle(notes: Findings, bundle: LeafBundle, published: Published | None, bits: bool = True) -> Node | None:
    """Note every check of a bundle; returns the contested node, or `None` if a check fails.

    A missing value is not an objection here.
    """
    with _noted(notes, "opened record"):
        check_binding(bundle.opening, bits)
    if published is not None:
        published.check(notes, bundle.opening)
    node, graph = None, None
    with _noted(notes, "operator record"):
        node = _check_node(bundle)
    with _noted(notes, "graph header"):
        graph = _check_header(bundle)
    if node is not None and graph is not None:
        with _noted(notes, "edges"):
            _check_edges(bundle, node, graph)
        with _noted(notes, "results"):
            _check_results(bundle, node, graph)
    with _noted(notes, "value"):
        _check_values(bundle)
    if not notes.rejected and published is not None:
        record = bundle.opening.opened_record()
        with _noted(notes, "record of the step"):
            published.check_step(notes, bundle.opening, record, lambda names: small_values(bundle, names))
    return None if notes.rejected else node


def small_values(bundle: LeafBundle, names: Mapping[str, Digest]) -> dict[str, Tensor]:
    """The named values of the opening that the bundle contains; single numbers only."""
    found = {name: bundle.claimed[name] for name in names if name in bundle.claimed}
    return {name: value for name, value in found.items() if value.shape == () and tensor_digest(value) == names[name]}


def _check_node(bundle: LeafBundle) -> Node:
    """The node; its position in the graph is the position of its record among the operators."""
    opening, operator = bundle.opening, bundle.operator
    proof = NodeProof.from_json(operator.node)
    operator.check_record(opening)
    node = check_node(proof, opening.graph)
    place = f"record {operator.index} of {opening.operators.size}"
    require(
        (proof.index, proof.size) == (operator.index + 1, opening.operators.size + 1),
        f"{place} stands beside leaf {proof.index} of a graph of {proof.size - 1} nodes",
    )
    check_operator(node, operator.record)
    return node


def _check_header(bundle: LeafBundle) -> Graph:
    """The graph without its nodes; its sources and constants are those of the opening."""
    opening, proof = bundle.opening, NodeProof.from_json(bundle.operator.node)
    path = [Hash(bytes.fromhex(each)) for each in bundle.header.proof]
    check_inclusion(path, leaf_hash(encode(bundle.header.record)), 0, proof.size, proof.root)
    if bundle.header.record.keys() != HEADER_FIELDS:
        raise MalformedError("graph header: has other fields than a header")
    graph = graph_from_json(bundle.header.record, ())
    names = [each.name for each in graph.sources]
    require(len(set(names)) == len(names), "two values from outside have one name")
    require(set(names) == opening.sources.keys(), "the opening names other inputs than the graph has")
    for each in graph.constants:
        require(opening.sources[each.name] == each.digest, f"constant {each.name} is not the graph's")
    return graph


def _check_edges(bundle: LeafBundle, node: Node, graph: Graph) -> None:
    """Check that every operand is an input of the graph or a result of an operator before this one."""
    opening, inputs = bundle.opening, bundle.operator.record.inputs
    outside, producers = {each.name for each in graph.sources}, _producers(bundle)
    used = set()
    for ref in dict.fromkeys(node.refs):
        if ref in outside:
            require(opening.sources[ref] == inputs[ref], f"node {node.number} reads another {ref} than was given")
            continue
        number, _ = parse_ref(ref) or (node.number, 0)
        require(number < node.number, f"node {node.number} reads {ascii(ref)[:80]}, which nothing before it gives")
        require(number in producers, f"node {node.number} reads {ref}, and the record that gave it is not here")
        given = producers[number].record.outputs.get(ref)
        require(given == inputs[ref], f"node {node.number} reads another {ref} than was given")
        used.add(number)
    require(producers.keys() == used, "there are records of operators that gave nothing to this one")


def _producers(bundle: LeafBundle) -> dict[int, Edge]:
    """The records of producers by node number; each is under the root of the operators, before the contested one."""
    found: dict[int, Edge] = {}
    for edge in bundle.edges.producers:
        place, number = f"the record at place {edge.index}", edge.record.node
        check_leaf(bundle.opening.operators, edge.index, edge.record.to_bytes(), edge.proof)
        require(edge.index < bundle.operator.index, f"{place} does not stand before place {bundle.operator.index}")
        require(number not in found, f"{place} is a second one of node {number}")
        found[number] = edge
    return found


def _check_results(bundle: LeafBundle, node: Node, graph: Graph) -> None:
    """Check the outputs of the graph that are results of this operator or inputs of the graph."""
    opening, given = bundle.opening, {**bundle.opening.sources, **bundle.operator.record.outputs}
    require({each.name for each in graph.outputs} == opening.results.keys(), "the opening names other results")
    for output in graph.outputs:
        if output.value in given:
            require(opening.results[output.name] == given[output.value], f"{output.name} is not what was given")


def _check_values(bundle: LeafBundle) -> None:
    record = bundle.operator.record
    named = {**record.inputs, **record.outputs}
    for ref, tensor in bundle.values.items():
        require(ref in named, f"{ascii(ref)[:80]} is no value of this operator")
        require(tensor_digest(tensor) == named[ref], f"{ref} does not hold the bytes that its record names")


@contextmanager
def _noted(notes: Findings, name: str) -> Iterator[None]:
    """As `Findings.check`; a `MalformedError` is an objection too, because the prover committed to these bytes."""
    with notes.check(name):
        try:
            yield
        except MalformedError as error:
            raise ProofError(str(error)) from None

"""The request to a referee about a leaf, and the checks before any number is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import Digest, Hash, check_inclusion, leaf_hash
from tallystick.core.errors import MalformedError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.openings import check_leaf
from tallystick.programs.admission import Derived, parse_ref
from tallystick.programs.encoding import NodeProof, check_node, graph_from_json
from tallystick.programs.graph import Graph, Node, Ref
from tallystick.programs.operators.precision import UNSTATED, Precision
from tallystick.verdicts.leaf.bundle import Edge, LeafBundle
from tallystick.verdicts.opening.binding import check_binding, check_operator, check_sources
from tallystick.verdicts.operator.lazy_algebra import Places
from tallystick.verdicts.verdict import Fault, Findings, Verdict, bound_by_digest, require

if TYPE_CHECKING:
    from tallystick.verdicts.opening.published import Published
    from tallystick.verdicts.profiles import Profile


# The request to a referee about a leaf, and its ruling.

BANDS: Final = 2.0
"""The default margin of ties, in bands: each of the two numbers may be off by one rounding."""


class Ground(StrEnum):
    """The ground of a ruling."""

    STRUCTURE = "structure"
    DATA = "data"
    BOUND = "bound"
    TIE = "tie"
    THRESHOLD = "threshold"
    UNDECIDED = "undecided"
    OPERANDS = "operands"
    ELEMENT = "element"
    HOLDS = "holds"


@dataclass(frozen=True)
class LeafLimits:
    """Limits on what a referee computes.

    An operator with more than `whole_flops` floating-point operations, or with intermediates of more than
    `whole_bytes`, is not judged as a whole. It is judged at `elements` elements of each result, with `vectors` vectors
    of signs, and in the `rows` rows of a product with the largest residuals. If operands and intermediates take more
    than `memory_bytes` in float64, the referee does not judge.
    """

    whole_flops: int = 1 << 26
    whole_bytes: int = 1 << 28
    memory_bytes: int = 8 << 30
    elements: int = 1024
    vectors: int = 20
    rows: int = 2

    def are_passed_by(self, derived: Derived) -> bool:
        """Whether an operator exceeds the limits for being judged as a whole."""
        return derived.flops > self.whole_flops or derived.largest_bytes > self.whole_bytes


@dataclass(frozen=True)
class LeafRequest:
    """The settings of a ruling; the prover chooses none of them.

    `profile` holds calibrated thresholds, `published` the claim as it was published. `nonce` was drawn after the
    prover had committed to the leaf. `element` is the one that the challenger named: a result and a flat place in it.
    Without a nonce only this element is judged, or every element if none is named. `deviating` are further elements of
    a large operator to judge, because the judge's own kernel gives different ones. `opening` and `index` identify the
    contested leaf: a bundle about another one is refused. Without `bits`, the states and outputs of an opening are not
    compared with the digests in its record (`check_binding`).
    """

    precision: Precision = UNSTATED
    profile: Profile | None = None
    published: Published | None = None
    nonce: bytes = b""
    element: tuple[Ref, int] | None = None
    deviating: Mapping[Ref, Places] = field(default_factory=dict)
    bands: float = BANDS
    opening: Digest | None = None
    index: int | None = None
    bits: bool = True
    limits: LeafLimits = field(default_factory=LeafLimits)


@dataclass(frozen=True)
class RulingWork:
    """The cost of a ruling: operations of the operator, its elements, and how many were judged.

    `drawn` is the number of draws from each result that was not judged as a whole. `vectors` is the number of sign
    vectors in the check of a product; `rows` of its rows have a tolerance, and `unbounded` have none.
    """

    flops: int = 0
    elements: int = 0
    judged: int = 0
    vectors: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    drawn: int = 0
    rows: int = 0
    unbounded: int = 0


@dataclass(frozen=True)
class Ruling:
    """Who is at fault, and why; if `fault` is `None`, a committee has to decide.

    `worst` is the wrong element farthest beyond its bound, by its result and flat place.
    """

    fault: Fault | None
    ground: Ground
    reason: str
    verdict: Verdict
    work: RulingWork
    worst: tuple[Ref, int] | None = None

    def to_json(self) -> dict[str, Json]:
        """The ruling as JSON values."""
        work: dict[str, Json] = {
            "elements": self.work.elements,
            "flops": self.work.flops,
            "judged": self.work.judged,
            "vectors": self.work.vectors,
            **self.work.sizes,
        }
        fault: Json = "committee" if self.fault is None else str(self.fault)
        stated: dict[str, Json] = {"fault": fault, "ground": str(self.ground), "reason": self.reason, "work": work}
        return stated | self.verdict.to_json()


# Checks that the pieces of a leaf bundle are consistent, before a referee compares any number.
#
# Each leaf is checked alone. Leaf p checks that the record at position p is about node p of the graph. So the records
# of producers need no proof about the graph here: their own leaves check that.

HEADER_FIELDS = {"constants", "dialect", "form", "graph", "inputs", "outputs"}


def check_bundle(notes: Findings, bundle: LeafBundle, published: Published | None, bits: bool = True) -> Node | None:
    """Note every check of a bundle; returns the contested node, or `None` if a check fails.

    A missing value is not an objection here. Malformed bytes are one, because the prover committed to them.
    """
    with notes.check("opened record"), bound_by_digest():
        check_binding(bundle.opening, bits)
    if published is not None:
        published.check(notes, bundle.opening)
    node, graph = None, None
    with notes.check("operator record"), bound_by_digest():
        node = _check_node(bundle)
    with notes.check("graph header"), bound_by_digest():
        graph = _check_header(bundle)
    if node is not None and graph is not None:
        with notes.check("edges"), bound_by_digest():
            _check_edges(bundle, node, graph)
        with notes.check("results"), bound_by_digest():
            _check_results(bundle, node, graph)
    with notes.check("value"), bound_by_digest():
        _check_values(bundle)
    if not notes.rejected and published is not None:
        record = bundle.opening.opened_record()
        with notes.check("record of the step"), bound_by_digest():
            published.check_step(notes, bundle.opening, record, lambda names: small_values(bundle, names))
    return None if notes.rejected else node


def small_values(bundle: LeafBundle, names: Mapping[str, Digest]) -> dict[str, Tensor]:
    """The named values of the opening that the bundle contains; single numbers only."""
    claimed = {name: bundle.claimed[name] for name in names if name in bundle.claimed}
    return {name: value for name, value in claimed.items() if value.shape == () and tensor_digest(value) == names[name]}


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
    path = [Hash(bytes.fromhex(node)) for node in bundle.header.proof]
    check_inclusion(path, leaf_hash(encode(bundle.header.record)), 0, proof.size, proof.root)
    if bundle.header.record.keys() != HEADER_FIELDS:
        raise MalformedError("graph header: has other fields than a header")
    graph = graph_from_json(bundle.header.record, ())
    names = [source.name for source in graph.sources]
    require(len(set(names)) == len(names), "two values from outside have one name")
    check_sources(graph, opening)
    return graph


def _check_edges(bundle: LeafBundle, node: Node, graph: Graph) -> None:
    """Check that every operand is an input of the graph or a result of an operator before this one."""
    opening, inputs = bundle.opening, bundle.operator.record.inputs
    outside, producers = {source.name for source in graph.sources}, _producers(bundle)
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
    """The records of producers by node number, all under the root of the operators and before the contested one."""
    producers: dict[int, Edge] = {}
    for edge in bundle.edges.producers:
        place, number = f"the record at place {edge.index}", edge.record.node
        check_leaf(bundle.opening.operators, edge.index, edge.record.to_bytes(), edge.proof)
        require(edge.index < bundle.operator.index, f"{place} does not stand before place {bundle.operator.index}")
        require(number not in producers, f"{place} is a second one of node {number}")
        producers[number] = edge
    return producers


def _check_results(bundle: LeafBundle, node: Node, graph: Graph) -> None:
    """Check the outputs of the graph that are results of this operator or inputs of the graph."""
    opening, given = bundle.opening, {**bundle.opening.sources, **bundle.operator.record.outputs}
    require({output.name for output in graph.outputs} == opening.results.keys(), "the opening names other results")
    for output in graph.outputs:
        if output.value in given:
            require(opening.results[output.name] == given[output.value], f"{output.name} is not what was given")


def _check_values(bundle: LeafBundle) -> None:
    record = bundle.operator.record
    named = {**record.inputs, **record.outputs}
    for ref, tensor in bundle.values.items():
        require(ref in named, f"{ascii(ref)[:80]} is no value of this operator")
        require(tensor_digest(tensor) == named[ref], f"{ref} does not hold the bytes that its record names")

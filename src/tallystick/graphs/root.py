"""The root of a graph: a Merkle root over its header and nodes, so that a single node can be proved.

Leaf 0 is the header, which is everything but the nodes; leaf i is the record of the i-th node (RFC 6962 §2.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.commitments.digests import Digest
from tallystick.commitments.encoding import Json, decode, encode
from tallystick.commitments.proofs import LeafHashes, check_inclusion, prove_inclusion
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.documents.fields import fields, items, natural, text
from tallystick.errors import MalformedError, ProofError, UsageError
from tallystick.graphs.document import canonical, name_of
from tallystick.graphs.encoding import Find, header_json, node_from_json, node_text
from tallystick.graphs.graph import Graph, Node, kept
from tallystick.operators.registry import operator

PROOF_HASHES_MAX = 64
PROOF_FIELDS = ("index", "proof", "record", "root", "size")


@dataclass(frozen=True)
class NodeProof:
    """A node record with the proof that it is leaf `index` of a graph with `size` leaves and this `root`."""

    record: bytes
    index: int
    size: int
    root: Hash
    path: tuple[Hash, ...]

    def to_json(self) -> Json:
        """As JSON values; hashes in hexadecimal digits."""
        return {
            "index": self.index,
            "proof": [each.hex() for each in self.path],
            "record": decode(self.record, "node record"),
            "root": self.root.hex(),
            "size": self.size,
        }

    @classmethod
    def from_json(cls, value: Json) -> NodeProof:
        """A proof from JSON values; raises `MalformedError` naming the field."""
        found = fields(value, PROOF_FIELDS, "proof")
        path = items(found["proof"], "proof: proof")
        if len(path) > PROOF_HASHES_MAX:
            raise MalformedError(f"proof: {len(path)} hashes, more than {PROOF_HASHES_MAX}")
        return cls(
            record=encode(found["record"]),
            index=natural(found["index"], "proof: index"),
            size=natural(found["size"], "proof: size"),
            root=_hash(found["root"], "proof: root"),
            path=tuple(_hash(each, "proof: proof") for each in path),
        )


def graph_root(graph: Graph) -> Digest:
    """The digest that names a graph."""
    return kept(graph, "root", lambda: name_of(tree_root(leaves := graph_leaves(graph)), len(leaves)))


def graph_leaves(graph: Graph) -> tuple[Hash, ...]:
    """The leaf hash of the header, then of every node."""
    records = (canonical(header_json(graph)), *map(node_text, graph.nodes))
    return tuple(leaf_hash(record.encode()) for record in records)


def prove_node(graph: Graph, number: int) -> NodeProof:
    """The record of node `number` with its inclusion proof; raises `UsageError` where the graph has no such node."""
    places = [i for i, node in enumerate(graph.nodes, 1) if node.number == number]
    if not places:
        raise UsageError(f"the graph has no node {number}")
    leaves, index = graph_leaves(graph), places[0]
    path = prove_inclusion(LeafHashes(leaves), index, len(leaves))
    record = node_text(graph.nodes[index - 1]).encode()
    return NodeProof(record, index, len(leaves), tree_root(leaves), tuple(path))


def check_node(proof: NodeProof, graph: Digest, find: Find = operator) -> Node:
    """The node that `proof` opens.

    Raises:
        ProofError: the record is not one of the nodes of the graph with this root.
        MalformedError: the record is in the graph, but is not a valid node record.
    """
    if name_of(proof.root, proof.size) != graph:
        raise ProofError("the proof is about another graph")
    if proof.index == 0:
        raise ProofError("leaf 0 of a graph is its header, not a node")
    check_inclusion(proof.path, leaf_hash(proof.record), proof.index, proof.size, proof.root)
    return node_from_json(decode(proof.record, "node record"), "node record", find)


def _hash(value: Json, what: str) -> Hash:
    digits = text(value, what)
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise MalformedError(f"{what}: 64 hexadecimal digits are needed")
    return Hash(bytes.fromhex(digits))

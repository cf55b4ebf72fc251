"""Graphs as canonical JSON, and the root that names one and proves single nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from tallystick.core.canonical_json import INTEGER_MAX, Json, decode, encode, fields, items, natural, shown, text
from tallystick.core.digests import (
    Digest,
    Hash,
    LeafHashes,
    check_inclusion,
    digest,
    leaf_hash,
    parse_digest,
    prove_inclusion,
    tree_root,
)
from tallystick.core.errors import MalformedError, ProofError, UsageError
from tallystick.core.files import read_document
from tallystick.core.tensors import TensorSpec
from tallystick.programs.graph import Constant, Graph, GraphForm, GraphLimits, Input, Node, Operand, Output, Role, kept
from tallystick.programs.operators.definition import Attribute, Operator, Parameter, operator

# A graph's document by its bytes alone: canonical text, and the root that names it.
#
# Nothing here knows an operator. Who does not run a graph sees from its bytes that a file holds the graph that was
# named.
#
# The text is ASCII and holds no JSON float, so that Python's compact form with sorted keys is the canonical one
# (RFC 8785).

TOP_FIELDS: Final = ("constants", "dialect", "form", "graph", "inputs", "nodes", "outputs")
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


def canonical(value: Json) -> str:
    """The canonical text of JSON without floats and with ASCII keys."""
    return _ENCODER.encode(value)


def read_json(data: bytes, limits: GraphLimits) -> Json:
    """ASCII JSON without floats, not yet compared with its canonical form; raises `MalformedError`."""
    limits.check_document(data)
    try:
        value: Json = json.loads(data.decode("ascii"), parse_float=_refuse_float, parse_constant=_refuse_float)
    except UnicodeDecodeError as error:
        raise MalformedError(f"graph: byte {error.start} is not ASCII") from None
    except ValueError as error:
        raise MalformedError(f"graph: no valid JSON: {str(error)[:100]}") from None
    return value


def read_parts(data: bytes, limits: GraphLimits) -> tuple[Mapping[str, Json], list[Json]]:
    """The fields of a canonical document and its node records; raises `MalformedError`."""
    document = fields(read_json(data, limits), TOP_FIELDS, "graph")
    nodes = items(document["nodes"], "nodes")
    if len(nodes) > limits.nodes:
        raise MalformedError(f"graph: {len(nodes)} nodes, more than the {limits.nodes} allowed")
    _check_canonical(data, document, nodes)
    return document, nodes


def file_root(path: Path) -> Digest:
    """The digest that names the graph in a file. A refusal names the file: `UnavailableError`, `MalformedError`."""
    limits = GraphLimits()
    data = read_document(path, limits.document_bytes)
    try:
        return document_root(data, limits)
    except MalformedError as error:
        raise MalformedError(f"{path.name}: {error}") from None


def document_root(data: bytes, limits: GraphLimits) -> Digest:
    """The digest that names the graph of a document; raises `MalformedError` unless the document is canonical JSON.

    Leaf 0 is the header, everything but the nodes; leaf i is the record of the i-th node (`spec/graph.md`).
    """
    document, nodes = read_parts(data, limits)
    header = {name: value for name, value in document.items() if name != "nodes"}
    leaves = [leaf_hash(canonical(record).encode()) for record in (header, *nodes)]
    return name_of(tree_root(leaves), len(leaves))


def name_of(root: Hash, size: int) -> Digest:
    """The digest that names a graph whose tree has `size` leaves and this root."""
    return digest("graph", encode({"root": root.hex(), "size": size}))


def _refuse_float(text: str) -> NoReturn:
    raise MalformedError(f"graph: {text[:24]} is a JSON float; here floats are strings")


def _check_canonical(data: bytes, document: Mapping[str, Json], nodes: list[Json]) -> None:
    """Compare piece by piece: duplicate keys, layout, order and spelling all show, and memory is not doubled."""
    before, after = canonical(dict(document) | {"nodes": []}).split('"nodes":[]', 1)
    position = _expect(data, before + '"nodes":[', 0)
    for i, node in enumerate(nodes):
        position = _expect(data, ("," if i else "") + canonical(node), position)
    if data[position:] != f"]{after}".encode(errors="replace"):
        raise MalformedError("graph: not canonical JSON (RFC 8785)")


def _expect(data: bytes, piece: str, position: int) -> int:
    if not data.startswith(piece.encode(errors="replace"), position):
        raise MalformedError("graph: not canonical JSON (RFC 8785)")
    return position + len(piece)


# A float attribute is a string in Python's spelling: `0.1`, `1e-05`, `-inf`, `nan`.

FORMAT: Final = 1
LIST_ITEMS_MAX: Final = 4096
NODE_FIELDS: Final = ("attributes", "number", "operands", "operator", "results")
FLOAT: Final = re.compile(r"-?\d+\.\d+(e[+-]\d{2,3})?|-?\d+e[+-]\d{2,3}|-?inf|nan", re.ASCII)

Find: TypeAlias = Callable[[str], Operator]
"""Looks an operator up by name; raises `MalformedError` for a name that is not on the allow-list."""
T = TypeVar("T")


def graph_bytes(graph: Graph) -> bytes:
    """The canonical bytes of a graph, with its nodes in their order."""
    before, after = canonical(header_json(graph) | {"nodes": []}).split('"nodes":[]', 1)
    return f'{before}"nodes":[{",".join(map(node_text, graph.nodes))}]{after}'.encode()


def node_text(node: Node) -> str:
    """One node record as canonical text; kept with the node, because its graph's file and its root need it."""
    return kept(node, "text", lambda: canonical(node_json(node)))


def header_json(graph: Graph) -> dict[str, Json]:
    """The fields of a graph without its nodes."""
    return {
        "constants": [
            {"digest": str(each.digest), "name": each.name, "spec": spec_json(each.spec)} for each in graph.constants
        ],
        "dialect": graph.dialect,
        "form": str(graph.form),
        "graph": FORMAT,
        "inputs": [{"name": each.name, "role": str(each.role), "spec": spec_json(each.spec)} for each in graph.inputs],
        "outputs": [{"name": each.name, "value": each.value} for each in graph.outputs],
    }


def node_json(node: Node) -> dict[str, Json]:
    """One node record."""
    return {
        "attributes": {name: attribute_json(attribute) for name, attribute in node.attributes.items()},
        "number": node.number,
        "operands": {
            name: list(operand) if isinstance(operand, tuple) else operand for name, operand in node.operands.items()
        },
        "operator": node.operator,
        "results": [None if spec is None else spec_json(spec) for spec in node.results],
    }


def spec_json(spec: TensorSpec) -> Json:
    """A dtype and its sides, such as `["F32",2,3]`."""
    return [spec.dtype, *spec.shape]


def attribute_json(attribute: Attribute) -> Json:
    """An attribute as JSON: floats become strings, tuples lists."""
    if isinstance(attribute, tuple):
        return [attribute_json(item) for item in attribute]
    return repr(attribute) if isinstance(attribute, float) else attribute


# ---- from JSON


def graph_from_json(header: Mapping[str, Json], nodes: tuple[Node, ...]) -> Graph:
    """A graph from its header fields and nodes; raises `MalformedError` naming the field."""
    if header["graph"] != FORMAT or isinstance(header["graph"], bool):
        raise MalformedError(f"graph: format {shown(header['graph'])} is unknown, {FORMAT} is known")
    return Graph(
        dialect=text(header["dialect"], "dialect"),
        form=_member(GraphForm, header["form"], "form"),
        inputs=tuple(_input(each, f"input {i}") for i, each in enumerate(items(header["inputs"], "inputs"))),
        constants=tuple(
            _constant(each, f"constant {i}") for i, each in enumerate(items(header["constants"], "constants"))
        ),
        nodes=nodes,
        outputs=tuple(_output(each, f"output {i}") for i, each in enumerate(items(header["outputs"], "outputs"))),
    )


def node_from_json(value: Json, what: str, find: Find) -> Node:
    """One node record; raises `MalformedError` naming `what`, and for operators that `find` does not know."""
    record = fields(value, NODE_FIELDS, what)
    number = natural(record["number"], f"{what}: number")
    what = f"node {number}"
    operator = find(text(record["operator"], f"{what}: operator"))
    what = f"{what}: {operator.name}"
    operands = [each for each in operator.parameters if each.is_operand]
    attributes = [each for each in operator.parameters if not each.is_operand]
    given = fields(record["operands"], [each.name for each in operands], f"{what}: operands")
    constants = fields(record["attributes"], [each.name for each in attributes], f"{what}: attributes")
    return Node(
        number=number,
        operator=operator.name,
        operands={each.name: _operand(given[each.name], f"{what}: {each.name}") for each in operands},
        attributes={each.name: attribute_from_json(constants[each.name], each, what) for each in attributes},
        results=tuple(
            None if spec is None else spec_from_json(spec, f"{what}: result {i}")
            for i, spec in enumerate(few(items(record["results"], f"{what}: results"), f"{what}: results"))
        ),
    )


def attribute_from_json(value: Json, parameter: Parameter, what: str) -> Attribute:
    """An attribute of the parameter's kind; raises `MalformedError` if it has another kind."""
    kind = parameter.kind.removesuffix("?")
    place = f"{what}: {parameter.name}"
    is_number = kind.removesuffix("[]") in {"float", "Scalar"}
    attribute: Attribute = None
    if isinstance(value, list):
        attribute = tuple(_item(each, is_number, place) for each in few(value, place))
    elif value is not None:
        attribute = _scalar(value, is_number, place)
    parameter.check(attribute, f"{what}: ")
    return attribute


def spec_from_json(value: Json, what: str) -> TensorSpec:
    """The spec of a possible tensor; raises `MalformedError` naming `what` for anything else."""
    parts = items(value, what)
    if 1 <= len(parts) <= 65 and type(parts[0]) is str and all(map(_is_side, parts[1:])):
        with suppress(MalformedError):  # which is raised again below, with its place
            return _possible(tuple(parts))
    if not parts or not isinstance(parts[0], str):
        raise MalformedError(f"{what}: a dtype and the sides of a shape are needed")
    spec = TensorSpec(parts[0], tuple(natural(side, f"{what}: side") for side in parts[1:65]))
    if len(parts) > 65:
        raise MalformedError(f"{what}: {len(parts) - 1} dimensions, more than 64")
    check_spec(spec, what)
    return spec


def check_spec(spec: TensorSpec, what: str) -> None:
    """Raise `MalformedError` naming `what` unless there can be a tensor of this spec."""
    try:
        assert spec.nbytes >= 0
    except MalformedError as error:
        raise MalformedError(f"{what}: {error}") from None


def _is_side(value: Json) -> bool:
    return type(value) is int and 0 <= value <= INTEGER_MAX


@lru_cache(maxsize=1 << 12)
def _possible(parts: tuple[Any, ...]) -> TensorSpec:
    """A spec by its dtype and sides, all integers; the thousands of values of a step have a few dozen."""
    spec = TensorSpec(parts[0], parts[1:])
    assert spec.nbytes >= 0
    return spec


def few(value: list[T], what: str) -> list[T]:
    """A list inside a node; raises `MalformedError` for too many items."""
    if len(value) > LIST_ITEMS_MAX:
        raise MalformedError(f"{what}: {len(value)} items, more than {LIST_ITEMS_MAX}")
    return value


def _operand(value: Json, what: str) -> Operand:
    if isinstance(value, list):
        return tuple(None if item is None else text(item, what) for item in few(value, what))
    return None if value is None else text(value, what)


def _scalar(value: Json, is_number: bool, what: str) -> bool | int | float | str:
    if isinstance(value, str) and is_number:
        return _float(value, what)
    if isinstance(value, str | bool | int):
        return value
    raise MalformedError(f"{what}: {shown(value)} is no attribute")


def _item(value: Json, is_number: bool, what: str) -> bool | int | float:
    number = _scalar(value, is_number, what)
    if isinstance(number, str):
        raise MalformedError(f"{what}: {shown(value)} is no number")
    return number


def _float(value: str, what: str) -> float:
    if not FLOAT.fullmatch(value) or repr(float(value)) != value:
        raise MalformedError(f"{what}: {shown(value)} is no float as this format writes it")
    return float(value)


def _input(value: Json, what: str) -> Input:
    entry = fields(value, ("name", "role", "spec"), what)
    name = text(entry["name"], f"{what}: name")
    return Input(name, _member(Role, entry["role"], f"{what}: role"), spec_from_json(entry["spec"], what))


def _constant(value: Json, what: str) -> Constant:
    entry = fields(value, ("digest", "name", "spec"), what)
    name = text(entry["name"], f"{what}: name")
    return Constant(name, spec_from_json(entry["spec"], what), parse_digest(entry["digest"], what))


def _output(value: Json, what: str) -> Output:
    entry = fields(value, ("name", "value"), what)
    return Output(text(entry["name"], f"{what}: name"), text(entry["value"], f"{what}: value"))


def _member(kinds: Callable[[str], T], value: Json, what: str) -> T:
    try:
        return kinds(text(value, what))
    except ValueError:
        raise MalformedError(f"{what}: {shown(value)} is unknown") from None


# The root of a graph: a Merkle root over its header and nodes, so that a single node can be proved.
#
# Leaf 0 is the header, which is everything but the nodes; leaf i is the record of the i-th node (RFC 6962 §2.1).

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
        entry = fields(value, PROOF_FIELDS, "proof")
        path = items(entry["proof"], "proof: proof")
        if len(path) > PROOF_HASHES_MAX:
            raise MalformedError(f"proof: {len(path)} hashes, more than {PROOF_HASHES_MAX}")
        return cls(
            record=encode(entry["record"]),
            index=natural(entry["index"], "proof: index"),
            size=natural(entry["size"], "proof: size"),
            root=_hash(entry["root"], "proof: root"),
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

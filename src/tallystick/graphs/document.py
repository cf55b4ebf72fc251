"""A graph's document by its bytes alone: canonical text, and the root that names it.

Nothing here knows an operator. Who does not run a graph sees from its bytes that a file holds the graph that was named.

The text is ASCII and holds no JSON float, so that Python's compact form with sorted keys is the canonical one
(RFC 8785).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import Json, encode
from tallystick.commitments.tree import Hash, leaf_hash, tree_root
from tallystick.documents.fields import fields, items
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError
from tallystick.graphs.limits import GraphLimits

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

"""Reads graphs from untrusted parties. Every check is made here, so code that gets a `Graph` need not repeat one.

A graph that passes has these properties. Its operators are on the allow-list, and their attributes have the right
kinds. Every value is produced once, before it is read, with the dtype and shape that its operator gives it. An
execution stays within the limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from tallystick.commitments.encoding import Json
from tallystick.documents.fields import fields, items
from tallystick.errors import MalformedError
from tallystick.graphs.check import check_graph
from tallystick.graphs.encoding import TOP_FIELDS, Find, canonical, graph_from_json, node_from_json
from tallystick.graphs.graph import Constant, Graph, Node
from tallystick.graphs.limits import GraphLimits
from tallystick.operators.registry import operator
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

DEFAULT: Final = GraphLimits()


def read_graph(data: bytes, limits: GraphLimits = DEFAULT, find: Find = operator) -> Graph:
    """The graph with these canonical bytes.

    Raises `MalformedError` naming what is wrong. A document beyond `limits` is refused before it is parsed, or
    before its nodes are read. No operator is computed.
    """
    document = fields(read_json(data, limits), TOP_FIELDS, "graph")
    nodes = items(document["nodes"], "nodes")
    if len(nodes) > limits.nodes:
        raise MalformedError(f"graph: {len(nodes)} nodes, more than the {limits.nodes} allowed")
    _check_canonical(data, document, nodes)
    graph = graph_from_json(document, tuple(_read_nodes(nodes, find)))
    check_graph(graph, limits, find)
    return graph


def read_json(data: bytes, limits: GraphLimits) -> Json:
    """The value of ASCII JSON without floats; raises `MalformedError`. Whether it is canonical is not checked here."""
    limits.check_document(data)
    try:
        value: Json = json.loads(data.decode("ascii"), parse_float=_refuse_float, parse_constant=_refuse_float)
    except UnicodeDecodeError as error:
        raise MalformedError(f"graph: byte {error.start} is not ASCII") from None
    except ValueError as error:
        raise MalformedError(f"graph: no valid JSON: {str(error)[:100]}") from None
    return value


def check_constants(constants: Iterable[Constant], tensors: Mapping[str, Tensor]) -> None:
    """Raise `MalformedError` unless every constant has a tensor of its spec and digest."""
    for constant in constants:
        tensor = tensors.get(constant.name)
        if tensor is None:
            raise MalformedError(f"constant {constant.name}: not there")
        if TensorSpec.of(tensor) != constant.spec:
            raise MalformedError(f"constant {constant.name} is {constant.spec}, given is {TensorSpec.of(tensor)}")
        if tensor_digest(tensor) != constant.digest:
            raise MalformedError(f"constant {constant.name}: its bytes do not have the digest {constant.digest}")


def _refuse_float(text: str) -> NoReturn:
    raise MalformedError(f"graph: {text[:24]} is a JSON float; here floats are strings")


def _check_canonical(data: bytes, document: Mapping[str, Json], nodes: list[Json]) -> None:
    """Compare with the canonical text piece by piece, so that the whole text is never in memory twice.

    The comparison finds duplicate keys, and any other layout, order or spelling.
    """
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


def _read_nodes(nodes: list[Json], find: Callable[..., Any]) -> Iterable[Node]:
    for i, node in enumerate(nodes):
        yield node_from_json(node, f"node record {i}", find)

"""Reads graphs from untrusted parties. Every check is made here, so code that gets a `Graph` need not repeat one.

A graph that passes has these properties. Its operators are on the allow-list, and their attributes have the right
kinds. Every value is produced once, before it is read, with the dtype and shape that its operator gives it. An
execution stays within the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tallystick.commitments.encoding import Json
from tallystick.errors import MalformedError
from tallystick.graphs.check import check_graph
from tallystick.graphs.document import read_parts
from tallystick.graphs.encoding import Find, graph_from_json, node_from_json
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
    document, nodes = read_parts(data, limits)
    graph = graph_from_json(document, tuple(_read_nodes(nodes, find)))
    check_graph(graph, limits, find)
    return graph


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


def _read_nodes(nodes: list[Json], find: Callable[..., Any]) -> Iterable[Node]:
    for i, node in enumerate(nodes):
        yield node_from_json(node, f"node record {i}", find)

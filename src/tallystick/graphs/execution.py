"""Runs a graph on an engine, node by node, and frees every value after its last reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tallystick.errors import MalformedError
from tallystick.graphs.costs import last_readers
from tallystick.graphs.derive import operand_of
from tallystick.graphs.engine import Arguments, Engine
from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor

Watcher = Callable[[Node, Arguments, tuple[Any, ...]], None]
Run = Callable[[Graph, State, Any], dict[str, Tensor]]
"""Executes a graph with its bindings on an engine: `execute`, or an engine's own function for whole graphs."""


def execute(
    graph: Graph, bindings: Mapping[Ref, Tensor], engine: Engine, watch: Watcher | None = None
) -> dict[str, Tensor]:
    """The outputs of `graph` by name; `bindings` holds its inputs and constants, and may hold more.

    `watch` is called after each node with the node, its operands and its results as arrays of the engine. Raises
    `MalformedError` if a binding is missing or has another spec.
    """
    held = {each.name: engine.load(_bound(bindings, each.name, each.spec)) for each in graph.sources}
    specs, last = graph.specs(), last_readers(graph)
    for node in graph.nodes:
        arguments = operands_of(node, held)
        results = engine.prepare(node)(arguments)
        if watch is not None:
            watch(node, arguments, results)
        held |= {ref: value for ref, value in zip(node.outputs, results, strict=True) if ref is not None}
        for ref in last.get(node.number, ()):
            del held[ref]
    return {output.name: engine.unload(held[output.value], specs[output.value].dtype) for output in graph.outputs}


def operands_of(node: Node, held: Mapping[Ref, Any]) -> dict[str, Any]:
    """The operands of a node by parameter name, taken from the arrays by reference."""
    return {name: operand_of(operand, held) for name, operand in node.operands.items()}


def _bound(bindings: Mapping[Ref, Tensor], name: Ref, spec: TensorSpec) -> Tensor:
    tensor = bindings.get(name)
    if tensor is None:
        raise MalformedError(f"{name} is not bound")
    if TensorSpec.of(tensor) != spec:
        raise MalformedError(f"{name} is {spec}, and bound to {TensorSpec.of(tensor)}")
    return tensor

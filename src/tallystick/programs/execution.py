"""Runs graphs node by node: the interface of an engine, and the reference engine in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.programs.admission import last_readers
from tallystick.programs.graph import Graph, Node, Ref, operands_of
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.values import Value, Values

Arguments: TypeAlias = Mapping[str, Any]
"""The operands of a node by parameter name: an array, a tuple of arrays and `None`s, or `None`."""


@runtime_checkable
class PlacesArrays(Protocol):
    """An engine that says where its arrays lie: two arrays of as many bytes at one place are views of the same ones."""

    def place(self, array: Any) -> int | None:
        """The address of an array whose canonical bytes lie in memory as they are; `None` if they do not."""


class Engine(Protocol):
    """Computes operators; raises `UnavailableError` for an operator that it does not implement."""

    @property
    def name(self) -> str:
        """The name of the engine: `reference`, `torch`, `jax` or `iree`."""

    def load(self, tensor: Tensor) -> Any:
        """A tensor as an array of this engine."""

    def unload(self, array: Any, dtype: str) -> Tensor:
        """An array as a tensor; the reference engine gives F64 for every float."""

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function from the operands to the node's results; a result that the node does not have is `None`."""


# Runs a graph on an engine, node by node, and frees every value after its last reader.

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


def _bound(bindings: Mapping[Ref, Tensor], name: Ref, spec: TensorSpec) -> Tensor:
    tensor = bindings.get(name)
    if tensor is None:
        raise MalformedError(f"{name} is not bound")
    if TensorSpec.of(tensor) != spec:
        raise MalformedError(f"{name} is {spec}, and bound to {TensorSpec.of(tensor)}")
    return tensor


# The reference engine: every operator by its definition, in NumPy and float64. Verifiers trust no other engine.


class Reference:
    """The engine without a framework; its arrays are `Value`s that hold every float in float64.

    Results differ from exact ones only by float64 rounding, because a narrower dtype of a graph does not round.
    """

    name: Final = "reference"

    @cached_property
    def algebra(self) -> Values:
        """The algebra in which definitions are read."""
        return Values(NUMPY, "F64")

    def load(self, tensor: Tensor) -> Value:
        """The elements, exactly."""
        return self.algebra.load(tensor)

    def unload(self, array: Value, dtype: str) -> Tensor:
        """A tensor of dtype F64 for every float, else of `dtype`."""
        assert array.dtype == dtype, f"{array.dtype} where the graph says {dtype}"
        return self.algebra.unload(array)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """The definition of the node's operator with its attributes; raises `MalformedError` if it is unknown."""
        known, algebra = operator(node.operator), self.algebra

        def run(arguments: Arguments) -> tuple[Any, ...]:
            return known.read(algebra, {**node.attributes, **arguments})

        return run

"""IREE as an engine: it compiles StableHLO nodes directly, and other operators from definitions traced by JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tallystick.errors import UnavailableError
from tallystick.frameworks.iree.programs import Runtime, compiled
from tallystick.frameworks.jax.emission import WRITERS, Signature, graph_function, module_text, node_function
from tallystick.frameworks.jax.signatures import Key, bound, flat, key_of, signatures_of, spread
from tallystick.graphs.engine import Arguments
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph, Node
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor

BY_DEFINITION: Final = frozenset({"stablehlo.scatter", "stablehlo.select_and_scatter", "stablehlo.sort"})
"""Operators that IREE 3.13 gets wrong: it writes outside the tensor, takes the last of equal maxima, sorts unstably."""


@dataclass(frozen=True)
class Buffer:
    """A buffer on IREE's device, with its dtype and shape."""

    view: Any
    spec: TensorSpec


class IreeEngine:
    """IREE on a CPU without special instructions, on the calling thread.

    Nodes are compiled when they first run; `compile` takes all distinct nodes of a graph into one module, which is
    several times faster. A StableHLO node that IREE does not compile runs by its definition.
    """

    name: Final = "iree"

    def __init__(self) -> None:
        self._runtime = Runtime()
        self._functions: dict[Key, Any] = {}

    def load(self, tensor: Tensor) -> Buffer:
        """A buffer on the device."""
        return Buffer(self._runtime.load(tensor), TensorSpec.of(tensor))

    def unload(self, array: Buffer, dtype: str) -> Tensor:
        """The bytes of a buffer."""
        return self._runtime.unload(array.view, TensorSpec(dtype, array.spec.shape))

    def compile(self, graph: Graph) -> None:
        """Compile every distinct node of `graph` in one module.

        Raises `UnavailableError` naming the operator that IREE does not compile.
        """
        missing = [each for each in signatures_of(graph) if key_of(each) not in self._functions]
        if missing:
            self._add(missing)

    def prepare(self, node: Node) -> Callable[[Arguments], tuple[Any, ...]]:
        """A function that runs the node; it compiles it first if operands like these are new."""

        def run(arguments: Arguments) -> tuple[Any, ...]:
            buffers = flat(arguments, node)
            signature = Signature(node, tuple(each.spec for each in buffers))
            key = key_of(signature)
            if key not in self._functions:
                self._add([signature])
            specs = signature.results
            views = self._functions[key]([each.view for each in buffers], len(specs))
            return spread(map(Buffer, views, specs), node.results)

        return run

    def run(self, graph: Graph, bindings: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a StableHLO graph, compiled as one program; IREE may fuse operators."""
        tensors, specs = bound(graph, bindings), graph.specs()
        [function] = self._runtime.functions(compiled(_whole(graph), "the graph"), ["main"])
        views = function([self._runtime.load(each) for each in tensors], len(graph.outputs))
        return {
            output.name: self._runtime.unload(view, specs[output.value])
            for output, view in zip(graph.outputs, views, strict=True)
        }

    def _add(self, signatures: Sequence[Signature], by_definition: bool = False) -> None:
        """Compile in one module; if that fails, compile halves; a single node that fails runs by its definition."""
        names = [f"op{place}" for place in range(len(signatures))]
        write = _defined if by_definition else _function
        try:
            vmfb = compiled(module_text(map(write, signatures, names)), signatures[0].node.operator)
        except UnavailableError:
            if len(signatures) > 1:
                middle = len(signatures) // 2
                self._add(signatures[:middle])
                self._add(signatures[middle:])
            elif by_definition:
                raise
            else:
                self._add(signatures, by_definition=True)
            return
        functions = self._runtime.functions(vmfb, names)
        self._functions |= zip(map(key_of, signatures), functions, strict=True)


def _whole(graph: Graph) -> str:
    """A graph as one module; nodes that run by their definitions are separate functions."""
    specs = graph.specs()
    apart = {node.number: node for node in graph.nodes if node.operator in BY_DEFINITION}
    called = {number: f"node{number}" for number in apart}
    signatures = [Signature(node, tuple(specs[ref] for ref in node.refs)) for node in apart.values()]
    return module_text([*map(_defined, signatures, called.values()), graph_function(graph, "main", called)])


def _function(signature: Signature, name: str) -> str:
    if signature.node.operator in WRITERS.keys() - BY_DEFINITION:
        return node_function(signature, name)
    return _defined(signature, name)


def _defined(signature: Signature, name: str) -> str:
    from tallystick.frameworks.jax.programs import lowered_function

    text = lowered_function(signature, name)
    if "stablehlo.sort" in text:
        raise UnavailableError(f"IREE does not run {signature.node.operator}: its stablehlo.sort is not stable")
    return text


def run_compiled(graph: Graph, bindings: State, engine: IreeEngine) -> dict[str, Tensor]:
    """The outputs of `graph`; all nodes are compiled at once, which is several times faster than one by one."""
    engine.compile(graph)
    return execute(graph, bindings, engine)
